//! CLIENT KILL, in its old and its new form, over all shards. A client that kills itself gets its reply
//! before it is closed.

use super::list::{kind, unknown_kind};
use crate::context::Ctx;
use crate::context::scatter_gather::{Then, To};
use crate::io::questions::{ClientFilter, Part, Question};
use crate::redis::args::{Args, integer, is};
use crate::redis::reply::{SYNTAX, error, quoting};
use hubsub_types::ConnKey;
use hubsub_wire::resp;

#[derive(Debug)]
struct Order {
    filter: ClientFilter,
    /// True if the requesting client is not killed.
    skip_me: bool,
    /// True for the form with only an address, which replies OK.
    is_old: bool,
}

/// `CLIENT KILL address`, or `CLIENT KILL option value …`.
pub fn kill(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let Order { mut filter, skip_me, is_old } = match parse(&args[2..]) {
        Ok(order) => order,
        Err(text) => return error(ctx, key, text),
    };
    let Some(conn) = ctx.io.conns.get(key) else { return };
    let kills_me = !skip_me && (ctx.hooks.is_meant)(ctx, &filter, key, conn);
    filter.except = Some(conn.id);
    let reason = format!("CLIENT KILL of client {}", conn.id);
    let write = move |out: &mut Vec<u8>, _, parts: Vec<Part>| {
        let of = |part: &Part| if let Part::Number(Ok(number)) = part { *number } else { 0 };
        let killed = parts.iter().map(of).sum::<u64>() + u64::from(kills_me);
        match (is_old, killed) {
            (true, 0) => resp::error(out, "ERR No such client"),
            (true, _) => resp::simple(out, "OK"),
            (false, killed) => resp::int(out, killed as i64),
        }
    };
    let slot = ctx.io.open_slot(key);
    ctx.ask(To::All, Question::KillClients(filter, reason), Then::Reply(key, slot, Box::new(write)));
    if kills_me {
        ctx.io.close_soon(key);
    }
}

fn parse(options: Args<'_>) -> Result<Order, Vec<u8>> {
    let text = |arg: &[u8]| Some(String::from_utf8_lossy(arg).into_owned());
    let mut filter = ClientFilter::default();
    if let [address] = options {
        filter.addr = text(address);
        return Ok(Order { filter, skip_me: false, is_old: true });
    }
    let mut skip_me = true;
    for option in options.chunks(2) {
        let [option, value] = *option else { return Err(SYNTAX.into()) };
        if is(option, "id") {
            let id = integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
            filter.ids = vec![id.ok_or("ERR client-id should be greater than 0")?];
        } else if is(option, "type") {
            filter.kind = Some(kind(value).ok_or_else(|| unknown_kind(value))?.to_owned());
        } else if is(option, "addr") {
            filter.addr = text(value);
        } else if is(option, "laddr") {
            filter.laddr = text(value);
        } else if is(option, "user") {
            // User names are case-sensitive; there is one user.
            if value != b"default" {
                return Err(quoting("ERR No such user '", value, "'"));
            }
            filter.user = text(value);
        } else if is(option, "maxage") {
            let age = integer(value).ok_or("ERR maxage is not an integer or out of range")?;
            let age = u64::try_from(age).ok().filter(|age| *age > 0);
            filter.age_s_min = age.ok_or("ERR maxage should be greater than 0")?;
        } else if is(option, "skipme") && is(value, "yes") {
            skip_me = true;
        } else if is(option, "skipme") && is(value, "no") {
            skip_me = false;
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(Order { filter, skip_me, is_old: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(line: &str) -> Result<Order, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        parse(&words).map_err(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn one_argument_is_an_address_and_spares_nobody() {
        let order = order("127.0.0.1:7").unwrap();
        assert!(order.is_old && !order.skip_me);
        assert_eq!(order.filter.addr.as_deref(), Some("127.0.0.1:7"));
    }

    #[test]
    fn options_hold_together_and_the_last_of_a_kind_counts() {
        let line = "ID 3 id 4 TYPE slave ADDR a LADDR b USER default MAXAGE 9 SKIPME no";
        let Order { filter, skip_me, is_old } = order(line).unwrap();
        assert!(!skip_me && !is_old);
        assert_eq!((filter.ids, filter.age_s_min), (vec![4], 9));
        let texts = [filter.kind, filter.addr, filter.laddr, filter.user];
        assert_eq!(texts.map(Option::unwrap), ["replica", "a", "b", "default"]);
        assert!(order("TYPE normal").unwrap().skip_me);
    }

    #[test]
    fn wrong_options_have_redis_s_words() {
        let errors = [
            ("ID 0", "ERR client-id should be greater than 0"),
            ("ID x", "ERR client-id should be greater than 0"),
            ("TYPE x", "ERR Unknown client type 'x'"),
            ("USER x", "ERR No such user 'x'"),
            ("MAXAGE x", "ERR maxage is not an integer or out of range"),
            ("MAXAGE 0", "ERR maxage should be greater than 0"),
            ("SKIPME x", SYNTAX),
            ("ID 1 TYPE", SYNTAX),
            ("NOSUCH x", SYNTAX),
        ];
        for (line, text) in errors {
            assert_eq!(order(line).unwrap_err(), text, "{line}");
        }
    }
}
