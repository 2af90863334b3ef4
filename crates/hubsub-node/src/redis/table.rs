//! The commands and subcommands, sorted by name, with their functions and the data for COMMAND. A
//! subcommand's name is `container|subcommand`, as in Redis's errors and replies.

use super::client::{self, kill, list};
use super::{Args, cluster, command, config, connection, hubsub, info, pubsub, server, transaction};
use crate::context::Ctx;
use hubsub_types::ConnKey;

/// A command or subcommand.
pub struct Command {
    /// The name in lower case.
    pub name: &'static str,
    /// The number of arguments including the name; negative: at least that many.
    pub arity: i8,
    flags: u32,
    /// Its group in COMMAND DOCS.
    pub group: &'static str,
    /// The Redis version that introduced it; for HUBSUB commands, the HubSub version.
    pub since: &'static str,
    /// One sentence for COMMAND DOCS.
    pub summary: &'static str,
    /// Executes it; the arity is already checked.
    pub run: fn(&mut Ctx, ConnKey, Args<'_>),
}

// Flags of COMMAND INFO, in its order.
const WRITE: u32 = 1 << 0;
const ADMIN: u32 = 1 << 1;
const PUBSUB: u32 = 1 << 2;
const NOSCRIPT: u32 = 1 << 3;
const LOADING: u32 = 1 << 4;
const STALE: u32 = 1 << 5;
const SKIP_SLOWLOG: u32 = 1 << 6;
const FAST: u32 = 1 << 7;
const NO_AUTH: u32 = 1 << 8;
const ALLOW_BUSY: u32 = 1 << 9;
const READ: u32 = 1 << 10;

// Categories of COMMAND INFO that do not follow from the flags.
const CONNECTION: u32 = 1 << 16;
const DANGEROUS: u32 = 1 << 17;
const KEYSPACE: u32 = 1 << 18;
const SCRIPTING: u32 = 1 << 19;
const TRANSACTION: u32 = 1 << 20;

/// A RESP2 client may send it while subscribed.
const WHILE_SUBSCRIBED: u32 = 1 << 24;
/// Between MULTI and EXEC it is executed instead of queued.
const NOT_QUEUED: u32 = 1 << 25;
/// A command with subcommands.
const CONTAINER: u32 = 1 << 26;

const SAFE: u32 = LOADING | STALE;
const NLS: u32 = NOSCRIPT | SAFE;
const OF_CLIENT: u32 = NLS | CONNECTION;
const OF_ADMIN: u32 = NLS | ADMIN;
const ANY_TIME: u32 = NLS | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION;
const OF_TRANSACTION: u32 = NLS | FAST | ALLOW_BUSY | TRANSACTION;
const SUBSCRIBES: u32 = NLS | PUBSUB | WHILE_SUBSCRIBED;
const PUBLISHES: u32 = SAFE | FAST | PUBSUB;

/// Names of the flags in COMMAND INFO.
const FLAG_NAMES: &[(u32, &str)] = &[
    (WRITE, "write"),
    (READ, "readonly"),
    (ADMIN, "admin"),
    (PUBSUB, "pubsub"),
    (NOSCRIPT, "noscript"),
    (LOADING, "loading"),
    (STALE, "stale"),
    (SKIP_SLOWLOG, "skip_slowlog"),
    (FAST, "fast"),
    (NO_AUTH, "no_auth"),
    (ALLOW_BUSY, "allow_busy"),
];

/// Categories, each with the bits that imply it; `@slow` is the opposite of `@fast`.
const CATEGORY_NAMES: &[(u32, &str)] = &[
    (KEYSPACE, "@keyspace"),
    (READ, "@read"),
    (WRITE, "@write"),
    (PUBSUB, "@pubsub"),
    (ADMIN, "@admin"),
    (FAST, "@fast"),
    (0, "@slow"),
    (ADMIN | DANGEROUS, "@dangerous"),
    (CONNECTION, "@connection"),
    (TRANSACTION, "@transaction"),
    (SCRIPTING, "@scripting"),
];

impl Command {
    /// True if it accepts `count` arguments, including the name.
    #[inline]
    pub fn accepts(&self, count: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= arity } else { count == arity }
    }

    /// True if MULTI queues it.
    #[inline]
    pub fn is_queued(&self) -> bool {
        self.flags & NOT_QUEUED == 0
    }

    /// True if a RESP2 client may send it while subscribed.
    #[inline]
    pub fn is_allowed_while_subscribed(&self) -> bool {
        self.flags & WHILE_SUBSCRIBED != 0
    }

    /// True if it requires the permission to administer the node.
    #[inline]
    pub fn is_admin(&self) -> bool {
        self.flags & ADMIN != 0
    }

    /// True if its name has two parts.
    pub fn is_subcommand(&self) -> bool {
        self.name.contains('|')
    }

    pub fn subcommands(&self) -> impl Iterator<Item = &'static Command> + Clone {
        let name = self.name;
        let of = move |c: &&Command| c.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('|'));
        COMMANDS.iter().filter(of)
    }

    /// Its flags in COMMAND INFO.
    pub fn flag_names(&self) -> Vec<&'static str> {
        FLAG_NAMES.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, name)| *name).collect()
    }

    /// Its categories in COMMAND INFO.
    pub fn category_names(&self) -> Vec<&'static str> {
        let has = |(bits, name): &&(u32, &str)| match *name {
            "@slow" => self.flags & FAST == 0,
            _ => self.flags & bits != 0,
        };
        CATEGORY_NAMES.iter().filter(has).map(|(_, name)| *name).collect()
    }

    /// The arguments that a cluster client hashes: index of the last one from the end (0: only the first
    /// argument), and the key flag.
    pub fn keys(&self) -> Option<(i64, &'static str)> {
        match self.name {
            "spublish" => Some((0, "not_key")),
            "ssubscribe" | "sunsubscribe" => Some((-1, "not_key")),
            "watch" => Some((-1, "RO")),
            _ => None,
        }
    }
}

macro_rules! commands {
    ($($name:literal $arity:literal $flags:expr, $group:literal $since:literal $summary:literal, $run:path;)+) => {
        /// All commands, sorted by name.
        pub static COMMANDS: &[Command] = &[$(Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            group: $group,
            since: $since,
            summary: $summary,
            run: $run,
        },)+];
    };
}

commands! {
    "asking" 1 FAST | CONNECTION, "cluster" "3.0.0" "Accepted; no slot is on its way.", cluster::accept;
    "auth" -2 ANY_TIME, "connection" "1.0.0" "Authenticates the connection.", connection::auth;
    "client" -2 CONTAINER, "connection" "2.4.0" "Knows and controls client connections.", server::container;
    "client|getname" 2 OF_CLIENT, "connection" "2.6.9" "The name of this connection.", client::getname;
    "client|help" 2 SAFE | CONNECTION, "connection" "5.0.0" "What CLIENT can do.", client::help;
    "client|id" 2 OF_CLIENT, "connection" "5.0.0" "The id of this connection.", client::id;
    "client|info" 2 OF_CLIENT, "connection" "6.2.0" "Describes this connection.", list::info;
    "client|kill" -3 OF_ADMIN | CONNECTION, "connection" "2.4.0" "Closes connections.", kill::kill;
    "client|list" -2 OF_ADMIN | CONNECTION, "connection" "2.4.0" "Describes connections.", list::list;
    "client|no-evict" 3 OF_ADMIN | CONNECTION, "connection" "7.0.0" "Sets a mark; nobody is evicted.", client::no_evict;
    "client|no-touch" 3 OF_CLIENT, "connection" "7.2.0" "Sets a mark; there are no keys to touch.", client::no_touch;
    "client|reply" 3 OF_CLIENT, "connection" "3.2.0" "Turns replies off and on.", client::reply;
    "client|setinfo" 4 OF_CLIENT, "connection" "7.2.0" "Tells which library the client uses.", client::setinfo;
    "client|setname" 3 OF_CLIENT, "connection" "2.6.9" "Names this connection.", client::setname;
    "cluster" -2 CONTAINER, "cluster" "3.0.0" "Which node has which slots; on the cluster listener.", server::container;
    "cluster|countkeysinslot" 3 STALE, "cluster" "3.0.0" "Zero; there are no keys.", cluster::countkeysinslot;
    "cluster|getkeysinslot" 4 STALE, "cluster" "3.0.0" "Nothing; there are no keys.", cluster::getkeysinslot;
    "cluster|help" 2 SAFE, "cluster" "5.0.0" "What CLUSTER can do.", cluster::help;
    "cluster|info" 2 STALE, "cluster" "3.0.0" "The state of the cluster.", cluster::info;
    "cluster|keyslot" 3 STALE, "cluster" "3.0.0" "The slot of a channel.", cluster::keyslot;
    "cluster|links" 2 STALE, "cluster" "7.0.0" "Nothing; there is no bus of Redis's.", cluster::links;
    "cluster|myid" 2 STALE, "cluster" "3.0.0" "The id of this node.", cluster::myid;
    "cluster|nodes" 2 STALE, "cluster" "3.0.0" "The nodes and their slots, in lines.", cluster::nodes;
    "cluster|replicas" 3 ADMIN | STALE, "cluster" "5.0.0" "Nothing; every slot has one node.", cluster::replicas;
    "cluster|shards" 2 STALE, "cluster" "7.0.0" "The nodes and their slots.", cluster::shards;
    "cluster|slots" 2 STALE, "cluster" "3.0.0" "Ranges of slots and their nodes.", cluster::slots;
    "command" -1 SAFE | CONNECTION | CONTAINER, "server" "2.8.13" "Describes all commands.", command::command;
    "command|count" 2 SAFE | CONNECTION, "server" "2.8.13" "The number of commands.", command::count;
    "command|docs" -2 SAFE | CONNECTION, "server" "7.0.0" "Explains commands.", command::docs;
    "command|getkeys" -4 SAFE | CONNECTION, "server" "2.8.13" "The keys of a whole command.", command::getkeys;
    "command|help" 2 SAFE | CONNECTION, "server" "5.0.0" "What COMMAND can do.", command::help;
    "command|info" -2 SAFE | CONNECTION, "server" "2.8.13" "Describes commands.", command::info;
    "command|list" -2 SAFE | CONNECTION, "server" "7.0.0" "The names of commands.", command::list;
    "config" -2 CONTAINER, "server" "2.0.0" "Shows configuration in Redis's words.", server::container;
    "config|get" -3 OF_ADMIN, "server" "2.0.0" "Values of the parameters that match.", config::get;
    "config|help" 2 SAFE, "server" "5.0.0" "What CONFIG can do.", config::help;
    "config|resetstat" 2 OF_ADMIN, "server" "2.0.0" "Refused: counters run since the start.", config::resetstat;
    "config|rewrite" 2 OF_ADMIN, "server" "2.8.0" "Refused: the node writes no configuration.", config::rewrite;
    "config|set" -4 OF_ADMIN, "server" "2.0.0" "Takes values that hold already.", config::set;
    "dbsize" 1 READ | FAST | KEYSPACE, "server" "1.0.0" "Zero; there are no keys.", server::dbsize;
    "discard" 1 OF_TRANSACTION | NOT_QUEUED, "transactions" "2.0.0" "Drops the queued commands.", transaction::discard;
    "echo" 2 SAFE | FAST | CONNECTION, "connection" "1.0.0" "Returns its argument.", connection::echo;
    "exec" 1 NLS | SKIP_SLOWLOG | TRANSACTION | NOT_QUEUED, "transactions" "1.2.0" "Executes the queued commands.", transaction::exec;
    "flushall" -1 WRITE | KEYSPACE | DANGEROUS, "server" "1.0.0" "Accepted; there are no keys.", server::flush;
    "flushdb" -1 WRITE | KEYSPACE | DANGEROUS, "server" "1.0.0" "Accepted; there are no keys.", server::flush;
    "function" -2 CONTAINER, "scripting" "7.0.0" "There are no functions.", server::container;
    "function|flush" -2 WRITE | NOSCRIPT | SCRIPTING, "scripting" "7.0.0" "Accepted; there are no functions.", server::function_flush;
    "function|help" 2 SAFE | SCRIPTING, "scripting" "7.0.0" "What FUNCTION can do.", server::function_help;
    "hello" -1 ANY_TIME, "connection" "6.0.0" "Chooses the protocol version and authenticates.", connection::hello;
    "hubsub" -2 CONTAINER, "pubsub" "0.1.0" "Rooms, their history and positions.", server::container;
    "hubsub|ack" -3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "Acknowledges records.", hubsub::ack;
    "hubsub|help" 2 SAFE | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "What HUBSUB can do.", hubsub::help;
    "hubsub|history" -3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "Records that a room keeps.", hubsub::history;
    "hubsub|locate" 3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "The nodes that serve a room.", hubsub::locate;
    "hubsub|positions" 3 SUBSCRIBES, "pubsub" "0.1.0" "Adds positions to messages.", hubsub::positions;
    "hubsub|presence" 3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "Who is in a room.", hubsub::presence;
    "hubsub|subscribe" -5 SUBSCRIBES, "pubsub" "0.1.0" "Subscribes from a place in the past, or as a consumer.", hubsub::subscribe;
    "info" -1 SAFE | DANGEROUS, "server" "1.0.0" "Describes the server.", info::info;
    "multi" 1 OF_TRANSACTION | NOT_QUEUED, "transactions" "1.2.0" "Queues the commands that follow.", transaction::multi;
    "ping" -1 FAST | CONNECTION | WHILE_SUBSCRIBED, "connection" "1.0.0" "Answers.", connection::ping;
    "psubscribe" -2 SUBSCRIBES, "pubsub" "2.0.0" "Subscribes to patterns.", pubsub::psubscribe;
    "publish" 3 PUBLISHES, "pubsub" "2.0.0" "Publishes to a topic.", pubsub::publish;
    "pubsub" -2 CONTAINER, "pubsub" "2.8.0" "Who subscribes to what.", server::container;
    "pubsub|channels" -2 SAFE | PUBSUB, "pubsub" "2.8.0" "Topics with subscribers.", pubsub::channels;
    "pubsub|help" 2 SAFE, "pubsub" "6.2.0" "What PUBSUB can do.", pubsub::help;
    "pubsub|numpat" 2 SAFE | PUBSUB, "pubsub" "2.8.0" "The number of patterns.", pubsub::numpat;
    "pubsub|numsub" -2 SAFE | PUBSUB, "pubsub" "2.8.0" "The number of each topic's subscribers.", pubsub::numsub;
    "pubsub|shardchannels" -2 SAFE | PUBSUB, "pubsub" "7.0.0" "Shard channels with subscribers.", pubsub::shardchannels;
    "pubsub|shardnumsub" -2 SAFE | PUBSUB, "pubsub" "7.0.0" "The number of each shard channel's subscribers.", pubsub::shardnumsub;
    "punsubscribe" -1 SUBSCRIBES, "pubsub" "2.0.0" "Ends pattern subscriptions.", pubsub::punsubscribe;
    "quit" -1 ANY_TIME | NOT_QUEUED | WHILE_SUBSCRIBED, "connection" "1.0.0" "Closes the connection.", connection::quit;
    "readonly" 1 SAFE | FAST | CONNECTION, "cluster" "3.0.0" "Accepted; there are no replicas.", cluster::accept;
    "readwrite" 1 SAFE | FAST | CONNECTION, "cluster" "3.0.0" "Accepted; there are no replicas.", cluster::accept;
    "reset" 1 ANY_TIME | NOT_QUEUED | WHILE_SUBSCRIBED, "connection" "6.2.0" "Returns the connection to its beginning.", connection::reset;
    "select" 2 SAFE | FAST | CONNECTION, "connection" "1.0.0" "Accepted; all databases are one.", connection::select;
    "spublish" 3 PUBLISHES, "pubsub" "7.0.0" "Publishes to a shard channel.", pubsub::spublish;
    "ssubscribe" -2 SUBSCRIBES, "pubsub" "7.0.0" "Subscribes to shard channels.", pubsub::ssubscribe;
    "subscribe" -2 SUBSCRIBES, "pubsub" "2.0.0" "Subscribes to topics.", pubsub::subscribe;
    "sunsubscribe" -1 SUBSCRIBES, "pubsub" "7.0.0" "Ends subscriptions to shard channels.", pubsub::sunsubscribe;
    "time" 1 SAFE | FAST, "server" "2.6.0" "Seconds since 1970, and microseconds.", server::time;
    "unsubscribe" -1 SUBSCRIBES, "pubsub" "2.0.0" "Ends subscriptions to topics.", pubsub::unsubscribe;
    "unwatch" 1 OF_TRANSACTION, "transactions" "2.2.0" "Accepted; there are no keys.", transaction::unwatch;
    "watch" -2 OF_TRANSACTION | NOT_QUEUED, "transactions" "2.2.0" "Accepted; there are no keys.", transaction::watch;
}

/// The length of the longest name in the table, in bytes.
const NAME_MAX: usize = 24;

/// Index of PUBLISH, the most frequent command.
const PUBLISH: usize = {
    let mut i = 0;
    while COMMANDS[i].name.len() != 7 || COMMANDS[i].name.as_bytes()[3] != b'l' {
        i += 1;
    }
    i
};

/// The result of a lookup.
pub enum Lookup {
    /// A command and its index in the table.
    Found(u8, &'static Command),
    NoCommand,
    NoSubcommand,
}

/// Finds the command or subcommand at the start of the arguments, ignoring case.
#[inline]
pub fn find(args: Args<'_>) -> Lookup {
    if args[0] == b"PUBLISH" || args[0].eq_ignore_ascii_case(b"publish") {
        return Lookup::Found(PUBLISH as u8, &COMMANDS[PUBLISH]);
    }
    let mut name = Name::default();
    let Some((place, command)) = (!args[0].contains(&b'|')).then(|| name.find(args[0])).flatten() else {
        return Lookup::NoCommand;
    };
    match args.get(1) {
        Some(sub) if command.flags & CONTAINER != 0 => match name.find(b"|").or(name.find(sub)) {
            Some((place, command)) => Lookup::Found(place, command),
            None => Lookup::NoSubcommand,
        },
        _ => Lookup::Found(place, command),
    }
}

/// A name in the table's form, built from parts.
#[derive(Default)]
struct Name {
    bytes: [u8; NAME_MAX],
    len: usize,
}

impl Name {
    /// Appends a part and looks up the result.
    fn find(&mut self, part: &[u8]) -> Option<(u8, &'static Command)> {
        let end = self.len + part.len();
        let room = self.bytes.get_mut(self.len..end)?;
        room.copy_from_slice(part);
        room.make_ascii_lowercase();
        self.len = end;
        let name = &self.bytes[..end];
        let place = COMMANDS.binary_search_by(|c| c.name.as_bytes().cmp(name)).ok()?;
        Some((place as u8, &COMMANDS[place]))
    }
}

/// A command by its full name, ignoring case.
pub fn by_full_name(name: &[u8]) -> Option<&'static Command> {
    Name::default().find(name).map(|(_, command)| command)
}

/// True for common Redis commands on keys, which new users often try.
pub fn is_of_redis_data(name: &[u8]) -> bool {
    const DATA: &[&str] = &[
        "get", "set", "setex", "mget", "mset", "del", "exists", "expire", "ttl", "incr", "decr", "keys",
        "scan", "type", "append", "hget", "hset", "hgetall", "lpush", "rpush", "lrange", "lpop", "rpop",
        "blpop", "brpop", "sadd", "srem", "smembers", "zadd", "zrange", "zrem", "xadd", "xread", "xrange",
        "eval", "evalsha",
    ];
    DATA.iter().any(|data| name.eq_ignore_ascii_case(data.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(args: Args<'_>) -> Option<&'static str> {
        match find(args) {
            Lookup::Found(place, command) => {
                assert_eq!(COMMANDS[usize::from(place)].name, command.name);
                Some(command.name)
            }
            _ => None,
        }
    }

    #[test]
    fn the_table_is_in_order_and_every_command_is_found() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name) && COMMANDS.len() < usize::from(u8::MAX));
        for command in COMMANDS {
            assert!(command.name.len() <= NAME_MAX);
            let upper = command.name.to_ascii_uppercase();
            let parts: Vec<&[u8]> = upper.split('|').map(str::as_bytes).collect();
            assert_eq!(found(&parts), Some(command.name));
            assert_eq!(by_full_name(upper.as_bytes()).map(|c| c.name), Some(command.name));
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for name in [&b"get"[..], b"", b"client|list", b"client|", &[b'x'; 100]] {
            assert!(matches!(find(&[name]), Lookup::NoCommand), "{name:?}");
        }
        for sub in [&b"nosuch"[..], b"", b"list|", b"|list", &[b'x'; 100], b"\0"] {
            assert!(matches!(find(&[b"client", sub]), Lookup::NoSubcommand), "{sub:?}");
        }
    }

    #[test]
    fn subcommands_belong_to_containers() {
        for command in COMMANDS.iter().filter(|c| !c.is_subcommand()) {
            assert_eq!(command.flags & CONTAINER != 0, command.subcommands().count() > 0, "{}", command.name);
        }
        assert_eq!(found(&[b"client"]), Some("client"));
        assert_eq!(found(&[b"ping", b"list"]), Some("ping"));
    }
}
