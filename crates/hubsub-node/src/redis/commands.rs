//! The commands with their functions, and the data for COMMAND.

use super::client::{self, kill, list};
use super::table::*;
use super::{caller, cluster, command, config, connection, hubsub, info, pubsub, reply, server, transaction};
use crate::context::conn::Flags;
use hubsub_route::Namespace;
use hubsub_wire::resp::Subscription;

macro_rules! commands {
    ($($name:literal $arity:literal $flags:expr, $group:literal $since:literal $summary:literal, $run:expr;)+) => {
        /// All commands, sorted by name.
        pub static TABLE: Table = Table::new(&[$(Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            group: $group,
            since: $since,
            summary: $summary,
            run: $run,
        },)+]);
    };
}

commands! {
    "asking" 1 FAST | CONNECTION, "cluster" "3.0.0" "Accepted; no slot is on its way.", cluster::accept;
    "auth" -2 ANY_TIME, "connection" "1.0.0" "Authenticates the connection.", connection::auth;
    "client" -2 CONTAINER, "connection" "2.4.0" "Knows and controls client connections.", server::container;
    "client|getname" 2 OF_CLIENT, "connection" "2.6.9" "The name of this connection.", client::getname;
    "client|help" 2 SAFE | CONNECTION, "connection" "5.0.0" "What CLIENT can do.", |c, key, _| reply::help(c, key, "CLIENT", client::HELP);
    "client|id" 2 OF_CLIENT, "connection" "5.0.0" "The id of this connection.", client::id;
    "client|info" 2 OF_CLIENT, "connection" "6.2.0" "Describes this connection.", list::info;
    "client|kill" -3 OF_ADMIN | CONNECTION, "connection" "2.4.0" "Closes connections.", kill::kill;
    "client|list" -2 OF_ADMIN | CONNECTION, "connection" "2.4.0" "Describes connections.", list::list;
    "client|no-evict" 3 OF_ADMIN | CONNECTION, "connection" "7.0.0" "Sets a mark; nobody is evicted.", |c, key, args| caller::switch(c, key, args, Flags::NO_EVICT);
    "client|no-touch" 3 OF_CLIENT, "connection" "7.2.0" "Sets a mark; there are no keys to touch.", |c, key, args| caller::switch(c, key, args, Flags::NO_TOUCH);
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
    "command" -1 SAFE | CONNECTION | CONTAINER, "server" "2.8.13" "Describes all commands.", |c, key, args| command::command(c, key, args, &TABLE);
    "command|count" 2 SAFE | CONNECTION, "server" "2.8.13" "The number of commands.", |c, key, args| command::count(c, key, args, &TABLE);
    "command|docs" -2 SAFE | CONNECTION, "server" "7.0.0" "Explains commands.", |c, key, args| command::docs(c, key, args, &TABLE);
    "command|getkeys" -4 SAFE | CONNECTION, "server" "2.8.13" "The keys of a whole command.", |c, key, args| command::getkeys(c, key, args, &TABLE);
    "command|help" 2 SAFE | CONNECTION, "server" "5.0.0" "What COMMAND can do.", |c, key, _| reply::help(c, key, "COMMAND", command::HELP);
    "command|info" -2 SAFE | CONNECTION, "server" "2.8.13" "Describes commands.", |c, key, args| command::info(c, key, args, &TABLE);
    "command|list" -2 SAFE | CONNECTION, "server" "7.0.0" "The names of commands.", |c, key, args| command::list(c, key, args, &TABLE);
    "config" -2 CONTAINER, "server" "2.0.0" "Shows configuration in Redis's words.", server::container;
    "config|get" -3 OF_ADMIN, "server" "2.0.0" "Values of the parameters that match.", config::get;
    "config|help" 2 SAFE, "server" "5.0.0" "What CONFIG can do.", |c, key, _| reply::help(c, key, "CONFIG", config::HELP);
    "config|resetstat" 2 OF_ADMIN, "server" "2.0.0" "Refused: counters run since the start.", config::resetstat;
    "config|rewrite" 2 OF_ADMIN, "server" "2.8.0" "Refused: the node writes no configuration.", config::rewrite;
    "config|set" -4 OF_ADMIN, "server" "2.0.0" "Takes values that hold already.", config::set;
    "dbsize" 1 READ | FAST | KEYSPACE, "server" "1.0.0" "Zero; there are no keys.", server::dbsize;
    "discard" 1 OF_TRANSACTION | NOT_QUEUED, "transactions" "2.0.0" "Drops the queued commands.", transaction::discard;
    "echo" 2 SAFE | FAST | CONNECTION, "connection" "1.0.0" "Returns its argument.", connection::echo;
    "exec" 1 NLS | SKIP_SLOWLOG | TRANSACTION | NOT_QUEUED, "transactions" "1.2.0" "Executes the queued commands.", |c, key, _| transaction::exec(c, key, &TABLE);
    "flushall" -1 WRITE | KEYSPACE | DANGEROUS, "server" "1.0.0" "Accepted; there are no keys.", server::flush;
    "flushdb" -1 WRITE | KEYSPACE | DANGEROUS, "server" "1.0.0" "Accepted; there are no keys.", server::flush;
    "function" -2 CONTAINER, "scripting" "7.0.0" "There are no functions.", server::container;
    "function|flush" -2 WRITE | NOSCRIPT | SCRIPTING, "scripting" "7.0.0" "Accepted; there are no functions.", server::function_flush;
    "function|help" 2 SAFE | SCRIPTING, "scripting" "7.0.0" "What FUNCTION can do.", |c, key, _| reply::help(c, key, "FUNCTION", server::FUNCTION_HELP);
    "hello" -1 ANY_TIME, "connection" "6.0.0" "Chooses the protocol version and authenticates.", connection::hello;
    "hubsub" -2 CONTAINER, "pubsub" "0.1.0" "Rooms, their history and positions.", server::container;
    "hubsub|ack" -3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "Acknowledges records.", hubsub::ack;
    "hubsub|help" 2 SAFE | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "What HUBSUB can do.", |c, key, _| reply::help(c, key, "HUBSUB", hubsub::HELP);
    "hubsub|history" -3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "Records that a room keeps.", hubsub::history;
    "hubsub|locate" 3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "The nodes that serve a room.", hubsub::locate;
    "hubsub|positions" 3 SUBSCRIBES, "pubsub" "0.1.0" "Adds positions to messages.", |c, key, args| caller::switch(c, key, args, Flags::POSITIONS);
    "hubsub|presence" 3 SAFE | PUBSUB | WHILE_SUBSCRIBED, "pubsub" "0.1.0" "Who is in a room.", hubsub::presence;
    "hubsub|subscribe" -5 SUBSCRIBES, "pubsub" "0.1.0" "Subscribes from a place in the past, or as a consumer.", hubsub::subscribe;
    "info" -1 SAFE | DANGEROUS, "server" "1.0.0" "Describes the server.", info::info;
    "multi" 1 OF_TRANSACTION | NOT_QUEUED, "transactions" "1.2.0" "Queues the commands that follow.", transaction::multi;
    "ping" -1 FAST | CONNECTION | WHILE_SUBSCRIBED, "connection" "1.0.0" "Answers.", connection::ping;
    "psubscribe" -2 SUBSCRIBES, "pubsub" "2.0.0" "Subscribes to patterns.", pubsub::psubscribe;
    "publish" 3 PUBLISHES, "pubsub" "2.0.0" "Publishes to a topic.", |c, key, args| pubsub::publish(c, key, args, Namespace::Global);
    "pubsub" -2 CONTAINER, "pubsub" "2.8.0" "Who subscribes to what.", server::container;
    "pubsub|channels" -2 SAFE | PUBSUB, "pubsub" "2.8.0" "Topics with subscribers.", |c, key, args| pubsub::channels(c, key, args, Namespace::Global);
    "pubsub|help" 2 SAFE, "pubsub" "6.2.0" "What PUBSUB can do.", |c, key, _| reply::help(c, key, "PUBSUB", pubsub::HELP);
    "pubsub|numpat" 2 SAFE | PUBSUB, "pubsub" "2.8.0" "The number of patterns.", pubsub::numpat;
    "pubsub|numsub" -2 SAFE | PUBSUB, "pubsub" "2.8.0" "The number of each topic's subscribers.", |c, key, args| pubsub::numsub(c, key, args, Namespace::Global);
    "pubsub|shardchannels" -2 SAFE | PUBSUB, "pubsub" "7.0.0" "Shard channels with subscribers.", |c, key, args| pubsub::channels(c, key, args, Namespace::Shard);
    "pubsub|shardnumsub" -2 SAFE | PUBSUB, "pubsub" "7.0.0" "The number of each shard channel's subscribers.", |c, key, args| pubsub::numsub(c, key, args, Namespace::Shard);
    "punsubscribe" -1 SUBSCRIBES, "pubsub" "2.0.0" "Ends pattern subscriptions.", |c, key, args| pubsub::unsubscribe(c, key, args, Namespace::Global, Subscription::PUnsubscribe);
    "quit" -1 ANY_TIME | NOT_QUEUED | WHILE_SUBSCRIBED, "connection" "1.0.0" "Closes the connection.", connection::quit;
    "readonly" 1 SAFE | FAST | CONNECTION, "cluster" "3.0.0" "Accepted; there are no replicas.", cluster::accept;
    "readwrite" 1 SAFE | FAST | CONNECTION, "cluster" "3.0.0" "Accepted; there are no replicas.", cluster::accept;
    "reset" 1 ANY_TIME | NOT_QUEUED | WHILE_SUBSCRIBED, "connection" "6.2.0" "Returns the connection to its beginning.", connection::reset;
    "select" 2 SAFE | FAST | CONNECTION, "connection" "1.0.0" "Accepted; all databases are one.", connection::select;
    "spublish" 3 PUBLISHES, "pubsub" "7.0.0" "Publishes to a shard channel.", |c, key, args| pubsub::publish(c, key, args, Namespace::Shard);
    "ssubscribe" -2 SUBSCRIBES, "pubsub" "7.0.0" "Subscribes to shard channels.", pubsub::ssubscribe;
    "subscribe" -2 SUBSCRIBES, "pubsub" "2.0.0" "Subscribes to topics.", pubsub::subscribe;
    "sunsubscribe" -1 SUBSCRIBES, "pubsub" "7.0.0" "Ends subscriptions to shard channels.", |c, key, args| pubsub::unsubscribe(c, key, args, Namespace::Shard, Subscription::SUnsubscribe);
    "time" 1 SAFE | FAST, "server" "2.6.0" "Seconds since 1970, and microseconds.", server::time;
    "unsubscribe" -1 SUBSCRIBES, "pubsub" "2.0.0" "Ends subscriptions to topics.", |c, key, args| pubsub::unsubscribe(c, key, args, Namespace::Global, Subscription::Unsubscribe);
    "unwatch" 1 OF_TRANSACTION, "transactions" "2.2.0" "Accepted; there are no keys.", |c, key, _| reply::ok(c, key);
    "watch" -2 OF_TRANSACTION | NOT_QUEUED, "transactions" "2.2.0" "Accepted; there are no keys.", transaction::watch;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::args::Args;

    fn found(args: Args<'_>) -> Option<&'static str> {
        match TABLE.find(args) {
            Lookup::Found(place, command) => {
                assert_eq!(TABLE.commands[usize::from(place)].name, command.name);
                Some(command.name)
            }
            _ => None,
        }
    }

    #[test]
    fn the_table_is_in_order_and_every_command_is_found() {
        assert!(
            TABLE.commands.is_sorted_by(|a, b| a.name < b.name)
                && TABLE.commands.len() < usize::from(u8::MAX)
        );
        for command in TABLE.commands {
            assert!(command.name.len() <= NAME_MAX);
            let upper = command.name.to_ascii_uppercase();
            let parts: Vec<&[u8]> = upper.split('|').map(str::as_bytes).collect();
            assert_eq!(found(&parts), Some(command.name));
            assert_eq!(TABLE.by_full_name(upper.as_bytes()).map(|c| c.name), Some(command.name));
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for name in [&b"get"[..], b"", b"client|list", b"client|", &[b'x'; 100]] {
            assert!(matches!(TABLE.find(&[name]), Lookup::NoCommand), "{name:?}");
        }
        for sub in [&b"nosuch"[..], b"", b"list|", b"|list", &[b'x'; 100], b"\0"] {
            assert!(matches!(TABLE.find(&[b"client", sub]), Lookup::NoSubcommand), "{sub:?}");
        }
    }

    #[test]
    fn subcommands_belong_to_containers() {
        for command in TABLE.without_subcommands() {
            assert_eq!(
                command.flags & CONTAINER != 0,
                TABLE.subcommands(command).count() > 0,
                "{}",
                command.name
            );
        }
        assert_eq!(found(&[b"client"]), Some("client"));
        assert_eq!(found(&[b"ping", b"list"]), Some("ping"));
    }
}
