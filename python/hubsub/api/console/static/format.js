// Formats numbers, times and data of clients as text.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTH = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

/** A rate per second. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value < 10 && value > 0 ? TENTH.format(value) : WHOLE.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < 4) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? WHOLE.format(size) : TENTH.format(size)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export function percent(share) {
  return share === null || share === undefined ? NONE : `${rate(share * 100)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 60) return `${WHOLE.format(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

/** Age of a time in milliseconds since 1970, by the browser's clock. */
export function ago(ms) {
  return `${seconds(Math.max(0, (Date.now() - ms) / 1000))} ago`;
}

/** Time of day in the browser's time zone. */
export function clock(ms) {
  const date = new Date(ms);
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

// Invisible characters, and characters that reorder their neighbours: controls, and marks of direction.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** A text of a client with its invisible characters escaped. */
export function visible(text) {
  return text.replace(UNSEEN, (char) =>
    char === "\t" ? char : `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const BINARY_SHOWN = 32;

// Characters that no text contains.
const BINARY = /[\u0000-\u0008\u000e-\u001a]/;

/** The payload of a tail record: its text, or its first bytes. */
export function payload(record) {
  const start =
    record.payload === null
      ? Uint8Array.from(atob(record.payload_base64), (char) => char.charCodeAt(0))
      : new TextEncoder().encode(record.payload);
  if (record.payload !== null && !BINARY.test(record.payload)) {
    const text = visible(record.payload);
    return start.length < record.payload_bytes ? `${text}… (${bytes(record.payload_bytes)})` : text;
  }
  const shown = start.subarray(0, BINARY_SHOWN);
  const hex = [...shown].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return `binary, ${bytes(record.payload_bytes)}: ${hex}${shown.length < record.payload_bytes ? " …" : ""}`;
}

/** The path of a room in the API; escaped bytes of its name stay escaped once. */
export function roomPath(name) {
  return `/v1/rooms/${encodeURIComponent(name).replace(/%25([0-9A-Fa-f]{2})/g, "%$1")}`;
}

/** Link to the page of a room. */
export function roomHref(name) {
  return `#/room/${encodeURIComponent(name.toWellFormed())}`;
}
