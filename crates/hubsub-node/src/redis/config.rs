//! CONFIG: the configuration in Redis's terms, read-only; it is set in HubSub's own configuration.

use super::args::{Args, is};
use super::caller;
use super::reply::{SYNTAX, error, ok, quoting};
use crate::context::Ctx;
use hubsub_types::names::Glob;
use hubsub_types::{ConnKey, Limits};
use hubsub_wire::resp;

/// `CONFIG GET pattern …`.
pub fn get(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if args.iter().map(|arg| arg.len()).sum::<usize>() as u64 > ctx.io.limits.inline_bytes_max {
        return error(ctx, key, "ERR too many patterns, or too long ones");
    }
    let parameters = parameters_for(ctx, key);
    let found = matching(&parameters, &args[2..]);
    ctx.io.reply(key, |out, proto| {
        resp::map_header(out, proto, found.len());
        for (name, value) in &found {
            resp::bulk(out, name);
            resp::bulk(out, value.as_bytes());
        }
    });
}

/// Each matching parameter, once. One requested by its plain name is returned with the client's spelling.
fn matching<'a>(parameters: &'a [Parameter], patterns: Args<'a>) -> Vec<(&'a [u8], &'a str)> {
    let globs: Vec<Glob> = patterns.iter().map(|pattern| Glob::new(&pattern.to_ascii_lowercase())).collect();
    let mut found = Vec::new();
    for (name, value) in parameters {
        let matches = |(glob, _): &(&Glob, &&'a [u8])| glob.matches(name.as_bytes());
        if let Some((_, pattern)) = globs.iter().zip(patterns).find(matches) {
            let is_plain = pattern.eq_ignore_ascii_case(name.as_bytes());
            found.push((if is_plain { *pattern } else { name.as_bytes() }, value.as_str()));
        }
    }
    found
}

/// `CONFIG SET name value …`: accepts current values, because test suites and frameworks set them at start.
pub fn set(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if !args.len().is_multiple_of(2) {
        return error(ctx, key, SYNTAX);
    }
    let parameters = parameters_for(ctx, key);
    match check(&parameters, &args[2..]) {
        Ok(()) => ok(ctx, key),
        Err(text) => error(ctx, key, text),
    }
}

fn check(parameters: &[Parameter], pairs: Args<'_>) -> Result<(), Vec<u8>> {
    let value_of = |name: &[u8]| parameters.iter().find(|(n, _)| is(name, n)).map(|(_, value)| value);
    for pair in pairs.chunks_exact(2) {
        if value_of(pair[0]).is_none() {
            let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(quoting(before, pair[0], "'"));
        }
    }
    for (i, pair) in pairs.chunks_exact(2).enumerate() {
        let is_double = pairs.chunks_exact(2).take(i).any(|other| other[0].eq_ignore_ascii_case(pair[0]));
        let holds = value_of(pair[0]).is_some_and(|value| pair[1].eq_ignore_ascii_case(value.as_bytes()));
        if is_double || !holds {
            let why = if is_double { "duplicate parameter" } else { "can't set immutable config" };
            let before = "ERR CONFIG SET failed (possibly related to argument '";
            return Err(quoting(before, pair[0], &format!("') - {why}")));
        }
    }
    Ok(())
}

/// `CONFIG RESETSTAT`: refused, because readers of counters compute differences.
pub fn resetstat(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    error(ctx, key, "ERR CONFIG RESETSTAT is not supported: counters run since the start of the node");
}

/// `CONFIG REWRITE`: refused, as by a Redis server without a configuration file.
pub fn rewrite(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    error(ctx, key, "ERR The server is running without a config file");
}

pub const HELP: &[&str] = &[
    "GET <pattern> [<pattern> ...]",
    "    Names and values of the parameters that match.",
    "RESETSTAT",
    "    Refused; counters run since the start of the node.",
    "REWRITE",
    "    Refused; the node writes no configuration.",
    "SET <parameter> <value> [<parameter> <value> ...]",
    "    Accepted for values that hold already; the node's configuration sets others.",
];

type Parameter = (&'static str, String);

fn parameters_for(ctx: &Ctx, key: ConnKey) -> Vec<Parameter> {
    let (info, is_of_cluster) = (&ctx.io.info, caller::is_of_cluster(ctx, key));
    let port = if is_of_cluster { info.cluster_port } else { info.port };
    parameters(&ctx.io.limits, port, ctx.io.mailer.shards(), is_of_cluster)
}

/// Parameters sorted by name, with values that describe this node.
fn parameters(limits: &Limits, port: u16, shards: u16, is_of_cluster: bool) -> Vec<Parameter> {
    let subscribers = [limits.output_bytes_max, limits.output_soft_bytes, limits.output_soft_ms / 1000];
    let [hard, soft, seconds] = subscribers;
    let texts = [
        ("appendfsync", "everysec".to_owned()),
        ("appendonly", "no".to_owned()),
        ("client-output-buffer-limit", format!("normal 0 0 0 slave 0 0 0 pubsub {hard} {soft} {seconds}")),
        ("client-query-buffer-limit", limits.frame_bytes_max.to_string()),
        ("cluster-enabled", if is_of_cluster { "yes" } else { "no" }.to_owned()),
        ("databases", "16".to_owned()),
        ("io-threads", shards.to_string()),
        ("maxclients", limits.connections_max.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("notify-keyspace-events", String::new()),
        ("port", port.to_string()),
        ("proto-max-bulk-len", limits.frame_bytes_max.to_string()),
        ("requirepass", String::new()),
        ("save", String::new()),
        ("tcp-keepalive", (limits.tcp_keepalive_ms / 1000).to_string()),
        ("timeout", "0".to_owned()),
    ];
    texts.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: Args<'_>) -> String {
        let parameters = parameters(&Limits::default(), 3221, 2, false);
        check(&parameters, pairs).map_or_else(|text| String::from_utf8(text).unwrap(), |()| "OK".to_owned())
    }

    #[test]
    fn a_value_that_holds_already_is_accepted_and_no_other() {
        let failed = |name: &str, why: &str| {
            format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}")
        };
        assert_eq!(set(&[b"save", b"", b"APPENDONLY", b"NO"]), "OK");
        assert_eq!(set(&[b"save", b"900 1"]), failed("save", "can't set immutable config"));
        assert_eq!(set(&[b"save", b"", b"SAVE", b""]), failed("SAVE", "duplicate parameter"));
        let unknown = "ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'";
        assert_eq!(set(&[b"save", b"900 1", b"nosuch", b"1"]), unknown);
    }

    #[test]
    fn parameters_are_found_once_by_glob_or_by_plain_name_in_any_case() {
        let parameters = parameters(&Limits::default(), 3221, 2, false);
        let names = |patterns: Args<'_>| -> Vec<String> {
            let found = matching(&parameters, patterns);
            found.iter().map(|(name, _)| String::from_utf8(name.to_vec()).unwrap()).collect()
        };
        assert_eq!(names(&[b"SAVE", b"sa?e", b"nosuch"]), ["SAVE"]);
        assert_eq!(names(&[b"MAXMEM*", b"databases"]), ["databases", "maxmemory", "maxmemory-policy"]);
        assert_eq!(names(&[b"*"]).len(), parameters.len());
    }

    #[test]
    fn the_output_limit_has_redis_s_form() {
        let parameters = parameters(&Limits::default(), 3221, 2, false);
        let (_, limit) = parameters.iter().find(|(name, _)| *name == "client-output-buffer-limit").unwrap();
        assert_eq!(limit, "normal 0 0 0 slave 0 0 0 pubsub 33554432 8388608 60");
        assert!(parameters.is_sorted());
    }
}
