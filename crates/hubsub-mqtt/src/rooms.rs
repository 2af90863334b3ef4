//! The rooms of a client id: its claims, its session's snapshot, and the entries after that. The id is their
//! last level.

const CLAIMS: &str = "$claim/";
const SNAPSHOTS: &str = "$system/session/";
const ENTRIES: &str = "$queue/";

#[must_use]
pub fn claim_room(id: &str) -> Vec<u8> {
    room(CLAIMS, id)
}

/// The id of a room of claims; none for another room.
#[must_use]
pub fn claim_id(room: &[u8]) -> Option<String> {
    id_of(CLAIMS, room)
}

#[must_use]
pub fn snapshot_room(id: &str) -> Vec<u8> {
    room(SNAPSHOTS, id)
}

/// The client id of a snapshot's room; none for another room.
#[must_use]
pub fn snapshot_id(room: &[u8]) -> Option<String> {
    id_of(SNAPSHOTS, room)
}

#[must_use]
pub fn entries_room(id: &str) -> Vec<u8> {
    room(ENTRIES, id)
}

/// The client id of an entries' room; none for another room.
#[must_use]
pub fn entries_id(room: &[u8]) -> Option<String> {
    id_of(ENTRIES, room)
}

fn room(prefix: &str, id: &str) -> Vec<u8> {
    format!("{prefix}{}", id.replace('%', "%25").replace('/', "%2F")).into_bytes()
}

fn id_of(prefix: &str, room: &[u8]) -> Option<String> {
    let level = std::str::from_utf8(room).ok()?.strip_prefix(prefix)?;
    Some(level.replace("%2F", "/").replace("%25", "%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_by_the_room_that_is_made_of_it() {
        for id in ["a", "a/b", "%2F", "%25/%", "$claim/", "ä b+#"] {
            let room = claim_room(id);
            assert_eq!(room.iter().filter(|&&byte| byte == b'/').count(), 1, "{id}");
            assert_eq!(claim_id(&room).as_deref(), Some(id));
        }
        assert_eq!(claim_id(b"other/a"), None);
    }
}
