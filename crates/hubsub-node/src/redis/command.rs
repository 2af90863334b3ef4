//! COMMAND: describes the commands of the table.

use super::args::{Args, is};
use super::reply::{SYNTAX, error, texts};
use super::table::{Command, Lookup, Table};
use crate::context::Ctx;
use hubsub_types::ConnKey;
use hubsub_types::names::Glob;
use hubsub_wire::resp::{self, Proto};

/// The most names in one command: the reply to each is a thousand times as long.
const NAMES_MAX: usize = 1_024;

const TOO_MANY: &str = "ERR too many names, at most 1024 with the command's own";

/// `COMMAND`: one entry per command.
pub fn command(ctx: &mut Ctx, key: ConnKey, _: Args<'_>, table: &Table) {
    write_rows(ctx, key, table, &table.without_subcommands().map(Some).collect::<Vec<_>>());
}

/// `COMMAND INFO [name …]`: one entry per name, null for an unknown one.
pub fn info(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, table: &Table) {
    if args.len() == 2 {
        return command(ctx, key, args, table);
    }
    if args.len() > NAMES_MAX {
        return error(ctx, key, TOO_MANY);
    }
    let rows: Vec<_> = args[2..].iter().map(|name| table.by_full_name(name)).collect();
    write_rows(ctx, key, table, &rows);
}

/// `COMMAND COUNT`: replies the number of commands without subcommands.
pub fn count(ctx: &mut Ctx, key: ConnKey, _: Args<'_>, table: &Table) {
    ctx.io.reply(key, |out, _| resp::int(out, table.without_subcommands().count() as i64));
}

/// `COMMAND DOCS [name …]`.
pub fn docs(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, table: &Table) {
    if args.len() > NAMES_MAX {
        return error(ctx, key, TOO_MANY);
    }
    let named: Vec<&Command> = match &args[2..] {
        [] => table.without_subcommands().collect(),
        names => names.iter().filter_map(|name| table.by_full_name(name)).collect(),
    };
    ctx.io.reply(key, |out, proto| {
        resp::map_header(out, proto, named.len());
        named.iter().for_each(|command| write_docs(out, proto, table, command));
    });
}

/// `COMMAND LIST [FILTERBY (MODULE name | ACLCAT category | PATTERN glob)]`.
pub fn list(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, table: &Table) {
    let names: Vec<&Command> = match args[2..] {
        [] => table.without_subcommands().collect(),
        [word, by, what] if is(word, "filterby") => {
            if is(by, "module") {
                Vec::new()
            } else if is(by, "aclcat") {
                let has = |c: &&Command| c.category_names().iter().any(|name| is(what, &name[1..]));
                table.commands.iter().filter(has).collect()
            } else if is(by, "pattern") && what.len() as u64 <= ctx.io.limits.pattern_bytes_max {
                let glob = Glob::new(&what.to_ascii_lowercase());
                table.commands.iter().filter(|c| glob.matches(c.name.as_bytes())).collect()
            } else {
                return error(ctx, key, SYNTAX);
            }
        }
        _ => return error(ctx, key, SYNTAX),
    };
    ctx.io.reply(key, |out, _| {
        resp::array_header(out, names.len());
        names.iter().for_each(|command| resp::bulk(out, command.name.as_bytes()));
    });
}

/// `COMMAND GETKEYS name argument …`: the arguments of WATCH, the only command here with keys in the Redis
/// sense.
pub fn getkeys(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, table: &Table) {
    let Lookup::Found(_, command) = table.find(&args[2..]) else {
        return error(ctx, key, "ERR Invalid command specified");
    };
    if command.keys().is_none_or(|(_, used)| used == "not_key") {
        return error(ctx, key, "ERR The command has no key arguments");
    }
    ctx.io.reply(key, |out, _| {
        resp::array_header(out, args.len() - 3);
        args[3..].iter().for_each(|arg| resp::bulk(out, arg));
    });
}

pub const HELP: &[&str] = &[
    "(none)",
    "    A row a command: name, arity, flags, place of keys, categories, subcommands.",
    "COUNT",
    "    The number of commands.",
    "DOCS [<name> ...]",
    "    What the commands do, in a sentence each.",
    "GETKEYS <name> <argument> ...",
    "    The arguments that are keys.",
    "INFO [<name> ...]",
    "    The rows of these commands.",
    "LIST [FILTERBY (MODULE <name> | ACLCAT <category> | PATTERN <pattern>)]",
    "    The names of the commands.",
];

fn write_rows(ctx: &mut Ctx, key: ConnKey, table: &Table, rows: &[Option<&Command>]) {
    ctx.io.reply(key, |out, proto| {
        resp::array_header(out, rows.len());
        for row in rows {
            match row {
                Some(command) => write_row(out, proto, table, command),
                None => resp::null(out, proto),
            }
        }
    });
}

/// Writes name, arity, flags, first, last and step of keys, categories, tips, key specifications (since 7.0),
/// subcommands.
fn write_row(out: &mut Vec<u8>, proto: Proto, table: &Table, command: &Command) {
    resp::array_header(out, 10);
    resp::bulk(out, command.name.as_bytes());
    resp::int(out, i64::from(command.arity));
    write_words(out, proto, &command.flag_names());
    let keys = command.keys();
    let (first, last, step) = keys.map_or((0, 0, 0), |(last, _)| (1, if last == 0 { 1 } else { last }, 1));
    [first, last, step].iter().for_each(|&number| resp::int(out, number));
    write_words(out, proto, &command.category_names());
    resp::set_header(out, proto, 0);
    resp::set_header(out, proto, usize::from(keys.is_some()));
    if let Some((last, used)) = keys {
        write_keys(out, proto, last, used);
    }
    match table.subcommands(command).count() {
        // As in Redis: a set if there are none, else an array.
        0 => resp::set_header(out, proto, 0),
        count => resp::array_header(out, count),
    }
    table.subcommands(command).for_each(|sub| write_row(out, proto, table, sub));
}

fn write_words(out: &mut Vec<u8>, proto: Proto, words: &[&str]) {
    resp::set_header(out, proto, words.len());
    words.iter().for_each(|word| resp::simple(out, word));
}

/// Writes the specification of keys from the first argument to the one at `last`, relative to the first.
fn write_keys(out: &mut Vec<u8>, proto: Proto, last: i64, used: &str) {
    resp::map_header(out, proto, 3);
    texts(out, &["flags"]);
    write_words(out, proto, &[used]);
    texts(out, &["begin_search"]);
    resp::map_header(out, proto, 2);
    texts(out, &["type", "index", "spec"]);
    resp::map_header(out, proto, 1);
    texts(out, &["index"]);
    resp::int(out, 1);
    texts(out, &["find_keys"]);
    resp::map_header(out, proto, 2);
    texts(out, &["type", "range", "spec"]);
    resp::map_header(out, proto, 3);
    for (name, number) in [("lastkey", last), ("keystep", 1), ("limit", 0)] {
        texts(out, &[name]);
        resp::int(out, number);
    }
}

fn write_docs(out: &mut Vec<u8>, proto: Proto, table: &Table, command: &Command) {
    let subcommands = table.subcommands(command).count();
    resp::bulk(out, command.name.as_bytes());
    resp::map_header(out, proto, 3 + usize::from(subcommands > 0));
    texts(out, &["summary", command.summary, "since", command.since, "group", command.group]);
    if subcommands > 0 {
        resp::bulk(out, b"subcommands");
        resp::map_header(out, proto, subcommands);
        table.subcommands(command).for_each(|sub| write_docs(out, proto, table, sub));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::commands::TABLE;

    #[test]
    fn a_row_is_what_redis_says_of_that_command() {
        let mut out = Vec::new();
        write_row(&mut out, Proto::Resp2, &TABLE, TABLE.by_full_name(b"CLIENT|LIST").unwrap());
        let row = "*10\r\n$11\r\nclient|list\r\n:-2\r\n*4\r\n+admin\r\n+noscript\r\n+loading\r\n+stale\r\n:0\r\n:0\r\n\
            :0\r\n*4\r\n+@admin\r\n+@slow\r\n+@dangerous\r\n+@connection\r\n*0\r\n*0\r\n*0\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), row);
    }
}
