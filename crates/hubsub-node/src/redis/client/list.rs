//! CLIENT LIST and CLIENT INFO: one line per connection, in Redis's format.

use crate::context::Ctx;
use crate::context::scatter_gather::To;
use crate::io::questions::{ClientFilter, ClientInfo, Part, Question};
use crate::redis::args::{ASKED_MAX, Args, integer, is};
use crate::redis::reply::{SYNTAX, error, quoting};
use hubsub_types::ConnKey;
use hubsub_wire::resp;
use std::collections::HashMap;
use std::fmt::Write;

/// `CLIENT INFO`: the LIST line of this connection.
pub fn info(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    let Some(conn) = ctx.io.conns.get(key) else { return };
    let mut text = String::new();
    write_line(&mut text, &(ctx.hooks.client_info)(ctx, key, conn));
    ctx.io.reply(key, |out, proto| resp::verbatim(out, proto, text.as_bytes()));
}

/// `CLIENT LIST [TYPE type | ID id …]`, over all shards.
pub fn list(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let mut filter = match filter(&args[2..]) {
        Ok(filter) => filter,
        Err(text) => return error(ctx, key, text),
    };
    let Some(proto) = ctx.io.conns.get(key).map(|conn| conn.session.proto()) else { return };
    let ids = filter.ids.clone();
    filter.ids.sort_unstable();
    let write = move |out: &mut Vec<u8>, _, parts| {
        let mut text = String::new();
        for info in in_order(parts, &ids) {
            write_line(&mut text, &info);
        }
        resp::verbatim(out, proto, text.as_bytes());
    };
    let bytes_max = ctx.io.limits.reply_bytes_max;
    let then = ctx.io.then_list(key, Box::new(write));
    ctx.ask(To::All, Question::Clients(filter, bytes_max), then);
}

/// Redis's client type of a name. No connection is a master or a replica.
pub fn kind(name: &[u8]) -> Option<&'static str> {
    if is(name, "slave") {
        return Some("replica");
    }
    ["normal", "pubsub", "master", "replica"].into_iter().find(|kind| is(name, kind))
}

pub fn unknown_kind(name: &[u8]) -> Vec<u8> {
    quoting("ERR Unknown client type '", name, "'")
}

fn filter(options: Args<'_>) -> Result<ClientFilter, Vec<u8>> {
    match options {
        [] => Ok(ClientFilter::default()),
        [option, name] if is(option, "type") => {
            let kind = kind(name).ok_or_else(|| unknown_kind(name))?;
            Ok(ClientFilter { kind: Some(kind.to_owned()), ..ClientFilter::default() })
        }
        [option, ids @ ..] if is(option, "id") && ids.len() > ASKED_MAX => {
            Err(format!("ERR too many ids, at most {ASKED_MAX}").into())
        }
        [option, ids @ ..] if is(option, "id") && !ids.is_empty() => {
            // A negative id matches no connection, like 0.
            let id = |arg: &&[u8]| integer(arg).map(|id| u64::try_from(id).unwrap_or(0));
            let ids: Option<Vec<u64>> = ids.iter().map(id).collect();
            let ids = ids.ok_or("ERR Invalid client ID")?;
            Ok(ClientFilter { ids, ..ClientFilter::default() })
        }
        _ => Err(SYNTAX.into()),
    }
}

/// In the order of the requested ids, else by age.
fn in_order(parts: Vec<Part>, ids: &[u64]) -> Vec<ClientInfo> {
    let of = |part| if let Part::Clients(infos) = part { infos } else { Vec::new() };
    let mut infos: Vec<ClientInfo> = parts.into_iter().flat_map(of).collect();
    infos.sort_unstable_by_key(|info| info.id);
    if ids.is_empty() {
        return infos;
    }
    // Each once, at its first place in the request.
    let mut left: HashMap<u64, ClientInfo> = infos.into_iter().map(|info| (info.id, info)).collect();
    ids.iter().filter_map(|id| left.remove(id)).collect()
}

fn write_line(text: &mut String, info: &ClientInfo) {
    let ClientInfo { id, addr, laddr, descriptor, name, age_s, idle_s, flags, command, .. } = info;
    let ClientInfo { subscriptions, patterns, shard_subscriptions, lib_name, lib_ver, .. } = info;
    let ClientInfo { query_bytes, pending_bytes, pending_frames, .. } = info;
    let multi = info.multi.map_or(-1, |count| count as i64);
    let events = if info.pending_bytes > 0 { "rw" } else { "r" };
    let memory = info.query_bytes + info.pending_bytes;
    let resp = info.protocol.strip_prefix("resp").unwrap_or("0");
    let written = writeln!(
        text,
        "id={id} addr={addr} laddr={laddr} fd={descriptor} name={name} age={age_s} idle={idle_s} flags={flags} \
         db=0 sub={subscriptions} psub={patterns} ssub={shard_subscriptions} multi={multi} watch=0 \
         qbuf={query_bytes} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll={pending_frames} \
         omem={pending_bytes} tot-mem={memory} events={events} cmd={command} user=default redir=-1 resp={resp} \
         lib-name={lib_name} lib-ver={lib_ver}",
    );
    written.expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_nothing_a_type_or_ids() {
        assert!(filter(&[]).unwrap().ids.is_empty());
        assert_eq!(filter(&[b"TYPE", b"Slave"]).unwrap().kind.as_deref(), Some("replica"));
        assert_eq!(filter(&[b"id", b"7", b"-1", b"7"]).unwrap().ids, [7, 0, 7]);
        assert_eq!(filter(&[b"type", b"x\r"]).unwrap_err(), b"ERR Unknown client type 'x\r'");
        assert_eq!(filter(&[b"id", b"7", b"x"]).unwrap_err(), b"ERR Invalid client ID");
        for bad in [&[&b"type"[..]][..], &[b"id"], &[b"x"], &[b"type", b"normal", b"x"]] {
            assert_eq!(filter(bad).unwrap_err(), SYNTAX.as_bytes(), "{bad:?}");
        }
    }

    #[test]
    fn ids_are_answered_in_the_order_asked_and_all_by_age() {
        let info = |id| ClientInfo { id, ..ClientInfo::default() };
        let parts = || vec![Part::Clients(vec![info(4), info(2)]), Part::Clients(vec![info(3)])];
        let ids = |wanted: &[u64]| in_order(parts(), wanted).iter().map(|i| i.id).collect::<Vec<_>>();
        assert_eq!(ids(&[]), [2, 3, 4]);
        assert_eq!(ids(&[3, 9, 2, 3, 2]), [3, 2]);
    }
}
