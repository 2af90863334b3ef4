//! INFO: the server's status in Redis's sections and names. ioredis does not connect without `loading:0`;
//! monitoring reads the rest.

use super::args::{Args, is};
use super::caller;
use super::reply::REDIS_VERSION;
use crate::context::Ctx;
use crate::io::metrics::{Metric, ShardMetrics};
use crate::io::node_info::BUILD_PROFILE;
use crate::io::sys;
use hubsub_types::ConnKey;
use hubsub_wire::resp;
use std::fmt::Display;
use std::sync::atomic::Ordering;

/// `INFO [section …]`: without arguments, all sections.
pub fn info(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    // Gauges of other shards are at most a second old; this shard's are exact.
    (ctx.hooks.set_gauges)(ctx);
    let is_wanted = |section: &str| {
        let words = ["all", "default", "everything", section];
        args.len() == 1 || args[1..].iter().any(|arg| words.iter().any(|word| is(arg, word)))
    };
    let mut text = Text::of(caller::is_of_cluster(ctx, key));
    for (name, write) in SECTIONS {
        if is_wanted(name) {
            text.section(name);
            write(ctx, &mut text);
        }
    }
    ctx.io.reply(key, |out, proto| resp::verbatim(out, proto, text.lines.as_bytes()));
}

type Section = (&'static str, fn(&Ctx, &mut Text));

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Cluster", |_, text| text.line("cluster_enabled", u8::from(text.is_of_cluster))),
    ("Keyspace", |_, _| ()),
];

struct Text {
    lines: String,
    /// True if a client of the cluster listener asks.
    is_of_cluster: bool,
}

impl Text {
    fn of(is_of_cluster: bool) -> Text {
        Text { lines: String::new(), is_of_cluster }
    }

    fn section(&mut self, name: &str) {
        if !self.lines.is_empty() {
            self.lines.push_str("\r\n");
        }
        self.lines.push_str(&format!("# {name}\r\n"));
    }

    fn line(&mut self, name: &str, value: impl Display) {
        self.lines.push_str(&format!("{name}:{value}\r\n"));
    }
}

fn server(ctx: &Ctx, text: &mut Text) {
    let info = &ctx.io.info;
    let uptime_s = info.started.elapsed().as_secs();
    text.line("redis_version", REDIS_VERSION);
    text.line("hubsub_version", &info.version);
    text.line("hubsub_build_profile", BUILD_PROFILE);
    text.line("hubsub_node", &info.name);
    text.line("hubsub_shards", ctx.io.mailer.shards());
    text.line("redis_mode", if text.is_of_cluster { "cluster" } else { "standalone" });
    text.line("os", format_args!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    text.line("arch_bits", usize::BITS);
    text.line("process_id", std::process::id());
    text.line("run_id", &info.run_id);
    text.line("tcp_port", if text.is_of_cluster { info.cluster_port } else { info.port });
    text.line("server_time_usec", ctx.io.now.wall_us);
    text.line("uptime_in_seconds", uptime_s);
    text.line("uptime_in_days", uptime_s / 86_400);
}

fn clients(ctx: &Ctx, text: &mut Text) {
    text.line("connected_clients", ctx.io.info.connections.load(Ordering::Relaxed));
    text.line("cluster_connections", 0);
    text.line("maxclients", ctx.io.limits.connections_max);
    text.line("blocked_clients", 0);
    text.line("tracking_clients", 0);
}

fn memory(ctx: &Ctx, text: &mut Text) {
    let resident_bytes = sys::resident_bytes();
    text.line("used_memory", resident_bytes);
    text.line("used_memory_human", human(resident_bytes));
    text.line("used_memory_rss", resident_bytes);
    text.line("used_memory_rss_human", human(resident_bytes));
    text.line("maxmemory", 0);
    text.line("maxmemory_human", human(0));
    text.line("maxmemory_policy", "noeviction");
    text.line("mem_clients_normal", total(ctx, |m| &m.output_bytes));
    text.line("hubsub_history_bytes", total(ctx, |m| &m.history_bytes));
}

fn persistence(_: &Ctx, text: &mut Text) {
    text.line("loading", 0);
    text.line("async_loading", 0);
    text.line("rdb_changes_since_last_save", 0);
    text.line("rdb_bgsave_in_progress", 0);
    text.line("rdb_last_bgsave_status", "ok");
    text.line("aof_enabled", 0);
    text.line("aof_rewrite_in_progress", 0);
    text.line("aof_last_bgrewrite_status", "ok");
    text.line("aof_last_write_status", "ok");
}

fn stats(ctx: &Ctx, text: &mut Text) {
    text.line("total_connections_received", total(ctx, |m| &m.connections_accepted_total));
    text.line("total_commands_processed", total(ctx, |m| &m.commands_total));
    text.line("total_net_input_bytes", total(ctx, |m| &m.bytes_in_total));
    text.line("total_net_output_bytes", total(ctx, |m| &m.bytes_out_total));
    text.line("rejected_connections", total(ctx, |m| &m.connections_refused_total));
    text.line("expired_keys", 0);
    text.line("evicted_keys", 0);
    text.line("keyspace_hits", 0);
    text.line("keyspace_misses", 0);
    text.line("pubsub_channels", total(ctx, |m| &m.channels));
    text.line("pubsub_patterns", ctx.broker.patterns.len());
    text.line("pubsubshard_channels", total(ctx, |m| &m.shard_channels));
    text.line("total_reads_processed", total(ctx, |m| &m.reads_total));
    text.line("total_writes_processed", total(ctx, |m| &m.writes_total));
    text.line("hubsub_rooms", total(ctx, |m| &m.rooms));
    text.line("hubsub_published", total(ctx, |m| &m.published_total));
    text.line("hubsub_delivered", total(ctx, |m| &m.delivered_total));
    text.line("hubsub_dropped", total(ctx, |m| &m.dropped_total));
}

fn replication(ctx: &Ctx, text: &mut Text) {
    text.line("role", "master");
    text.line("connected_slaves", 0);
    text.line("master_failover_state", "no-failover");
    text.line("master_replid", &ctx.io.info.run_id);
    text.line("master_repl_offset", 0);
    text.line("repl_backlog_active", 0);
}

fn cpu(_: &Ctx, text: &mut Text) {
    let (system_us, user_us) = sys::cpu_us();
    for (name, us) in [("used_cpu_sys", system_us), ("used_cpu_user", user_us)] {
        text.line(name, format_args!("{}.{:06}", us / 1_000_000, us % 1_000_000));
    }
}

fn total(ctx: &Ctx, of: impl Fn(&ShardMetrics) -> &Metric) -> u64 {
    ctx.io.info.metrics.iter().map(|shard| of(shard).get()).sum()
}

/// Formats bytes as Redis does for `_human` fields.
fn human(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let value = bytes as f64;
    match bytes {
        0..0x400 => format!("{bytes}B"),
        0x400..0x10_0000 => format!("{:.2}K", value / KIB),
        0x10_0000..0x4000_0000 => format!("{:.2}M", value / KIB / KIB),
        _ => format!("{:.2}G", value / KIB / KIB / KIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people_have_two_places() {
        let texts = [0, 1023, 1024, 1_139_056, 1 << 30].map(human);
        assert_eq!(texts, ["0B", "1023B", "1.00K", "1.09M", "1.00G"]);
    }

    #[test]
    fn sections_are_parted_by_an_empty_line() {
        let mut text = Text::of(false);
        text.section("Cluster");
        text.line("cluster_enabled", 0);
        text.section("Keyspace");
        assert_eq!(text.lines, "# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n");
    }
}
