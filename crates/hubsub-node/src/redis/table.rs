//! A command as the table describes it, and how the table finds it. [`super::commands`] lists them all. A
//! subcommand's name is `container|subcommand`, as in Redis's errors and replies.

use super::args::Args;
use crate::context::Ctx;
use hubsub_types::ConnKey;

pub struct Command {
    /// The name in lower case.
    pub name: &'static str,
    /// The number of arguments including the name; negative: at least that many.
    pub arity: i8,
    pub flags: u32,
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
pub const WRITE: u32 = 1 << 0;
pub const ADMIN: u32 = 1 << 1;
pub const PUBSUB: u32 = 1 << 2;
pub const NOSCRIPT: u32 = 1 << 3;
pub const LOADING: u32 = 1 << 4;
pub const STALE: u32 = 1 << 5;
pub const SKIP_SLOWLOG: u32 = 1 << 6;
pub const FAST: u32 = 1 << 7;
pub const NO_AUTH: u32 = 1 << 8;
pub const ALLOW_BUSY: u32 = 1 << 9;
pub const READ: u32 = 1 << 10;

// Categories of COMMAND INFO that do not follow from the flags.
pub const CONNECTION: u32 = 1 << 16;
pub const DANGEROUS: u32 = 1 << 17;
pub const KEYSPACE: u32 = 1 << 18;
pub const SCRIPTING: u32 = 1 << 19;
pub const TRANSACTION: u32 = 1 << 20;

/// A RESP2 client may send it while subscribed.
pub const WHILE_SUBSCRIBED: u32 = 1 << 24;
/// Between MULTI and EXEC it is executed instead of queued.
pub const NOT_QUEUED: u32 = 1 << 25;
pub const CONTAINER: u32 = 1 << 26;

pub const SAFE: u32 = LOADING | STALE;
pub const NLS: u32 = NOSCRIPT | SAFE;
pub const OF_CLIENT: u32 = NLS | CONNECTION;
pub const OF_ADMIN: u32 = NLS | ADMIN;
pub const ANY_TIME: u32 = NLS | FAST | NO_AUTH | ALLOW_BUSY | CONNECTION;
pub const OF_TRANSACTION: u32 = NLS | FAST | ALLOW_BUSY | TRANSACTION;
pub const SUBSCRIBES: u32 = NLS | PUBSUB | WHILE_SUBSCRIBED;
pub const PUBLISHES: u32 = SAFE | FAST | PUBSUB;

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

    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    pub fn is_subcommand(&self) -> bool {
        self.name.contains('|')
    }

    pub fn flag_names(&self) -> Vec<&'static str> {
        FLAG_NAMES.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, name)| *name).collect()
    }

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

/// The length of the longest name in the table, in bytes.
pub const NAME_MAX: usize = 24;

pub enum Lookup {
    Found(u8, &'static Command),
    NoCommand,
    NoSubcommand,
}

/// All commands and subcommands, sorted by name.
pub struct Table {
    pub commands: &'static [Command],
    /// The index of PUBLISH, the most frequent command.
    publish: usize,
}

impl Table {
    pub const fn new(commands: &'static [Command]) -> Table {
        let mut publish = 0;
        while commands[publish].name.len() != 7 || commands[publish].name.as_bytes()[3] != b'l' {
            publish += 1;
        }
        Table { commands, publish }
    }

    /// Finds the command or subcommand at the start of the arguments, ignoring case.
    #[inline]
    pub fn find(&self, args: Args<'_>) -> Lookup {
        if args[0] == b"PUBLISH" || args[0].eq_ignore_ascii_case(b"publish") {
            return Lookup::Found(self.publish as u8, &self.commands[self.publish]);
        }
        let mut name = Name::default();
        let Some((place, command)) = (!args[0].contains(&b'|')).then(|| name.find(self, args[0])).flatten()
        else {
            return Lookup::NoCommand;
        };
        match args.get(1) {
            Some(sub) if command.has(CONTAINER) => match name.find(self, b"|").or(name.find(self, sub)) {
                Some((place, command)) => Lookup::Found(place, command),
                None => Lookup::NoSubcommand,
            },
            _ => Lookup::Found(place, command),
        }
    }

    /// A command by its full name, ignoring case.
    pub fn by_full_name(&self, name: &[u8]) -> Option<&'static Command> {
        Name::default().find(self, name).map(|(_, command)| command)
    }

    pub fn without_subcommands(&self) -> impl Iterator<Item = &'static Command> {
        self.commands.iter().filter(|command| !command.is_subcommand())
    }

    pub fn subcommands(&self, of: &Command) -> impl Iterator<Item = &'static Command> + Clone {
        let name = of.name;
        let of = move |c: &&Command| c.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('|'));
        self.commands.iter().filter(of)
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
    fn find(&mut self, table: &Table, part: &[u8]) -> Option<(u8, &'static Command)> {
        let end = self.len + part.len();
        let room = self.bytes.get_mut(self.len..end)?;
        room.copy_from_slice(part);
        room.make_ascii_lowercase();
        self.len = end;
        let name = &self.bytes[..end];
        let place = table.commands.binary_search_by(|c| c.name.as_bytes().cmp(name)).ok()?;
        Some((place as u8, &table.commands[place]))
    }
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
