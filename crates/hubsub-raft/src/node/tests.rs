mod simulation;

use std::rc::Rc;

use tokio::time::{Instant, sleep};

use super::*;
use crate::identity::Bootstrap;
use crate::store::{Expect, Write};
use simulation::{Cluster, Done, History, all, put, simulate};

const MS: Duration = Duration::from_millis(1);

/// HUBSUB_SEEDS sets their number.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("HUBSUB_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(2)
}

/// Four clients that read and write four keys through all nodes during `faults`.
async fn clients(cluster: &Rc<Cluster>, steps: u64, faults: impl Future<Output = ()> + 'static) -> History {
    let history = Rc::new(RefCell::new(History::default()));
    let fault = tokio::task::spawn_local(faults);
    let client = |client: u64| {
        let (cluster, history) = (cluster.clone(), history.clone());
        async move {
            for step in 0..steps {
                sleep(MS * cluster.draw(60) as u32).await;
                let running = cluster.running();
                let node = cluster.node(&running[cluster.draw(running.len() as u64) as usize]);
                let key = format!("d/{}", cluster.draw(4));
                let start = history.borrow_mut().tick();
                let Ok(found) = node.get(&key).await else { continue };
                let (value, revision) =
                    found.map_or_else(Default::default, |(value, revision)| (value, revision));
                let value = String::from_utf8(value.0.to_vec()).expect("text");
                history.borrow_mut().note(start, &key, Done::Read(revision, value));
                let start = history.borrow_mut().tick();
                let value = format!("{client}-{step}");
                let answer = node.propose(put(&key, Some(revision), &value)).await;
                history.borrow_mut().note_commit(start, &key, value, revision, answer);
            }
        }
    };
    all((0..4).map(client).collect()).await;
    fault.await.expect("no panic");
    Rc::into_inner(history).expect("all clients ended").into_inner()
}

#[test]
fn one_node_is_a_cluster_and_finds_all_again_after_a_restart() {
    simulate(1, async |cluster| {
        cluster.grow(&["a"]).await;
        for n in 0..20 {
            let answer = cluster.node("a").propose(put(&format!("k/{n}"), Some(0), "v")).await;
            assert_eq!(answer, Ok(Answer::Committed(vec![n + 1])));
        }
        let before = cluster.node("a").status();
        cluster.kill("a").await;
        let node = cluster.start("a").await;
        assert_eq!(node.get("k/7").await, Ok(Some((b"v"[..].into(), 8))));
        let after = node.status();
        assert_eq!((before.node, before.cluster), (after.node, after.cluster));
        assert_eq!(node.page("k", None, 100).await.expect("a page").0.len(), 20);
        node.bootstrap().await.expect("it is in its cluster already");
    });
}

#[test]
fn a_cluster_grows_to_three_voters_and_the_rest_learn() {
    simulate(2, async |cluster| {
        cluster.grow(&["a", "b"]).await;
        cluster.node("b").propose(put("k", Some(0), "through a learner")).await.expect("forwarded");
        for name in ["c", "d", "e"] {
            cluster
                .start(name)
                .await
                .join(&["b".into()], MS * 20_000)
                .await
                .expect("joined through a follower");
        }
        let voters = |status: &Status| status.members.values().filter(|(_, votes)| *votes).count();
        cluster.until(|status| status.members.len() == 5 && voters(status) == 3).await;
        for name in ["a", "b", "c", "d", "e"] {
            let found = cluster.node(name).get("k").await.expect("a read").expect("there");
            assert_eq!(&*found.0.0, b"through a learner", "{name}");
        }
    });
}

#[test]
fn histories_are_linearizable_while_messages_are_lost_nodes_cut_off_and_leaders_killed() {
    for seed in seeds() {
        simulate(seed, async |cluster| {
            cluster.grow(&["a", "b", "c"]).await;
            let breaker = cluster.clone();
            let history = clients(&cluster, 40, async move {
                for _ in 0..4 {
                    sleep(MS * (200 + breaker.draw(400) as u32)).await;
                    let names = ["a", "b", "c"];
                    let one = names[breaker.draw(3) as usize];
                    match breaker.draw(4) {
                        0 => breaker.net().loss.set(50),
                        1 => breaker.isolate(one),
                        2 => breaker.isolate(&breaker.leader().unwrap_or_else(|| one.into())),
                        _ => {
                            let victim = breaker.leader().unwrap_or_else(|| one.into());
                            breaker.kill(&victim).await;
                            sleep(MS * breaker.draw(800) as u32).await;
                            breaker.start(&victim).await;
                        }
                    }
                    sleep(MS * (300 + breaker.draw(600) as u32)).await;
                    breaker.heal();
                    breaker.net().loss.set(0);
                }
            })
            .await;
            history.check();
            let committed = history.count(|done| matches!(done, Done::Committed { .. }));
            assert!(committed > 40, "little was done: {committed}");
        });
    }
}

#[test]
fn a_leader_killed_under_writes_loses_none_that_was_answered_and_is_followed_soon() {
    for seed in seeds() {
        simulate(seed, async |cluster| {
            cluster.grow(&["a", "b", "c"]).await;
            let leader = cluster.led().await;
            let other = cluster.running().into_iter().find(|name| *name != leader).expect("another");
            let node = cluster.node(&other);
            let written = Rc::new(RefCell::new(Vec::new()));
            let writer = {
                let (node, written) = (node.clone(), written.clone());
                tokio::task::spawn_local(async move {
                    for n in 0..200 {
                        let key = format!("w/{n:03}");
                        if let Ok(Answer::Committed(_)) = node.propose(put(&key, Some(0), "v")).await {
                            written.borrow_mut().push((key, Instant::now()));
                        }
                    }
                })
            };
            sleep(MS * 150).await;
            let killed = Instant::now();
            cluster.kill(&leader).await;
            writer.await.expect("no panic");
            drop(node);
            let written = written.take();
            let next = written.iter().find(|(_, at)| *at > killed + MS * 20).expect("writes go on").1;
            println!("written again after {:?}", next - killed);
            assert!(next - killed < MS * 1500);
            assert!(written.len() > 150, "{} written", written.len());
            cluster.start(&leader).await;
            cluster.kill(&other).await;
            for (key, _) in written {
                assert!(cluster.node(&leader).get(&key).await.expect("a read").is_some(), "{key} is lost");
            }
        });
    }
}

#[test]
fn late_and_returning_nodes_get_a_snapshot() {
    simulate(5, async |cluster| {
        cluster.snapshot_entries.set(50);
        cluster.grow(&["a", "b", "c"]).await;
        cluster.kill("c").await;
        let value = "v".repeat(40_000);
        for n in 0..300 {
            cluster.node("a").propose(put(&format!("k/{n:03}"), None, &value)).await.expect("written");
        }
        cluster.start("d").await.join(&["a".into()], MS * 20_000).await.expect("joined");
        cluster.start("c").await;
        for name in ["c", "d"] {
            let node = cluster.node(name);
            let (first, _) = node.page("k", None, 1000).await.expect("a page");
            assert!(first.len() > 90, "a page ends at its size");
            assert!(node.get("k/299").await.expect("a read").is_some(), "{name}");
            let purged = node.inner.raft.metrics().borrow_watched().purged;
            assert!(purged.is_some_and(|id| id.index() > 100), "{name} got no snapshot: {purged:?}");
            drop(node);
            cluster.kill(name).await;
            assert!(cluster.start(name).await.get("k/000").await.expect("a read").is_some(), "{name} again");
        }
    });
}

#[test]
fn a_node_that_joined_has_caught_up_with_a_long_log() {
    simulate(6, async |cluster| {
        cluster.grow(&["a", "b", "c"]).await;
        let value = "v".repeat(60_000);
        for n in 0..500 {
            cluster.node("a").propose(put(&format!("k/{n:03}"), None, &value)).await.expect("written");
        }
        cluster.request.set(MS * 60);
        let late = cluster.start("d").await;
        late.join(&["a".into()], MS * 20_000).await.expect("joined");
        assert!(late.get("k/499").await.expect("a read in its time").is_some());
    });
}

#[test]
fn a_lease_that_is_renewed_stays_and_one_that_is_not_goes_after_its_deadline_once() {
    for seed in seeds() {
        simulate(seed, async |cluster| {
            cluster.grow(&["a", "b", "c"]).await;
            let ttl = MS * 2000;
            let asked = Instant::now();
            let Ok(Answer::Granted(lease)) = cluster.node("b").propose(Command::Grant { ttl_ms: 2000 }).await
            else {
                panic!("no lease")
            };
            let deadline = Rc::new(Cell::new(asked + ttl));
            let write = Write::Put { key: "nodes/b".into(), value: b"b"[..].into(), lease: Some(lease) };
            let expect = vec![Expect { key: "nodes/b".into(), revision: 0 }];
            let bound = cluster.node("b").propose(Command::Commit { expect, writes: vec![write] }).await;
            assert!(matches!(bound, Ok(Answer::Committed(_))));

            let holder = {
                let (cluster, deadline) = (cluster.clone(), deadline.clone());
                tokio::task::spawn_local(async move {
                    let until = Instant::now() + MS * 8_000;
                    while Instant::now() < until {
                        sleep(MS * 400).await;
                        let running = cluster.running();
                        let node = cluster.node(&running[cluster.draw(running.len() as u64) as usize]);
                        let asked = Instant::now();
                        if tokio::time::timeout(ttl / 3, node.renew(lease)).await == Ok(Ok(())) {
                            deadline.set(deadline.get().max(asked + ttl));
                        }
                    }
                })
            };
            let breaker = {
                let cluster = cluster.clone();
                tokio::task::spawn_local(async move {
                    for _ in 0..4 {
                        sleep(MS * (500 + cluster.draw(800) as u32)).await;
                        let leader = cluster.led().await;
                        if cluster.draw(2) == 0 {
                            cluster.isolate(&leader);
                        } else {
                            cluster.kill(&leader).await;
                            sleep(MS * 300).await;
                            cluster.start(&leader).await;
                        }
                        sleep(MS * cluster.draw(900) as u32).await;
                        cluster.heal();
                    }
                })
            };
            let mut gone = 0;
            let mut cursor = None;
            let end = Instant::now() + MS * 18_000;
            while Instant::now() < end {
                let running = cluster.running();
                let node = cluster.node(&running[cluster.draw(running.len() as u64) as usize]);
                let Ok(batch) = node.watch("nodes", cursor.clone(), MS * 50).await else { continue };
                let absent = batch.items.iter().any(|item| item.name == "b" && item.entry.is_none());
                if absent || (batch.whole_begins && batch.items.is_empty()) {
                    gone += u32::from(absent);
                    assert!(
                        Instant::now() >= deadline.get(),
                        "gone {:?} before its deadline",
                        deadline.get() - Instant::now()
                    );
                }
                cursor = Some(batch.cursor);
            }
            holder.await.expect("no panic");
            breaker.await.expect("no panic");
            let node = cluster.node(&cluster.led().await);
            assert_eq!(node.get("nodes/b").await, Ok(None), "seed {seed}: it never went");
            assert!(gone <= 1, "it went {gone} times");
            assert_eq!(node.renew(lease).await, Err(Refusal::NoLease { lease }.into()));
            let late = cluster.node("a").propose(Command::Release(lease)).await;
            assert_eq!(late, Ok(Answer::Ended(0)));
        });
    }
}

#[test]
fn a_renewed_lease_survives_changes_of_the_leader() {
    simulate(9, async |cluster| {
        cluster.grow(&["a", "b", "c"]).await;
        let granted = cluster.node("a").propose(Command::Grant { ttl_ms: 3000 }).await;
        let Ok(Answer::Granted(lease)) = granted else { panic!("{granted:?}") };
        for _ in 0..4 {
            let leader = cluster.led().await;
            cluster.kill(&leader).await;
            let other = cluster.running()[0].clone();
            cluster.node(&other).renew(lease).await.expect("renewed by the next leader");
            cluster.start(&leader).await;
            sleep(MS * 500).await;
        }
    });
}

#[test]
fn a_leader_cut_off_returns_unknown_and_a_follower_cut_off_refuses() {
    simulate(11, async |cluster| {
        cluster.grow(&["a", "b", "c"]).await;
        let leader = cluster.led().await;
        let follower = cluster.running().into_iter().find(|name| *name != leader).expect("a follower");
        cluster.isolate(&leader);
        let unknown = cluster.node(&leader).propose(put("k", Some(0), "from the old leader")).await;
        assert!(matches!(unknown, Err(Error::Unknown(_))), "{unknown:?}");
        let read = cluster.node(&leader).get("k").await;
        assert!(matches!(read, Err(Error::Refused(Refusal::NoLeader { .. }))), "{read:?}");
        cluster
            .node(&follower)
            .propose(put("k", Some(0), "from the new one"))
            .await
            .expect("a majority goes on");
        cluster.heal();
        cluster.until(|status| status.leader.is_some()).await;
        let found = cluster.node(&leader).get("k").await.expect("a read").expect("there");
        assert_eq!(&*found.0.0, b"from the new one");

        for other in ["a", "b", "c"] {
            cluster.isolate(other);
        }
        sleep(MS * 1000).await;
        let follower =
            cluster.running().into_iter().find(|name| Some(name) != cluster.leader().as_ref()).expect("one");
        let term = cluster.node(&follower).status().term;
        let refused = cluster.node(&follower).propose(put("k2", Some(0), "nowhere")).await;
        assert!(refused.is_err(), "{refused:?}");
        sleep(MS * 10_000).await;
        assert_eq!(
            cluster.node(&follower).status().term,
            term,
            "a node that is alone does not raise the term"
        );
    });
}

#[test]
fn requests_to_a_silent_leader_go_to_its_successor_or_are_unknown_as_soon_as_that_leads() {
    for seed in 0..10 {
        simulate(seed, async |cluster| {
            cluster.grow(&["a", "b", "c"]).await;
            let leader = cluster.led().await;
            let followers: Vec<_> = cluster
                .running()
                .into_iter()
                .filter(|name| *name != leader)
                .map(|it| cluster.node(&it))
                .collect();
            // All nodes have the whole log.
            sleep(MS * 1_000).await;
            cluster.isolate(&leader);
            let began = Instant::now();
            let (read, written) =
                tokio::join!(followers[0].get("k"), followers[1].propose(put("k", Some(0), "lost")));
            assert!(matches!(read, Ok(None)), "{read:?}");
            assert!(matches!(written, Err(Error::Unknown(_))), "{written:?}");
            assert!(began.elapsed() < MS * 3_000, "{:?}", began.elapsed());
        });
    }
}

#[test]
fn a_follower_that_was_cut_off_does_not_disturb_the_leader_when_it_comes_back() {
    simulate(12, async |cluster| {
        cluster.grow(&["a", "b", "c"]).await;
        let leader = cluster.led().await;
        let follower = cluster.running().into_iter().find(|name| *name != leader).expect("a follower");
        let term = cluster.node(&leader).status().term;
        cluster.isolate(&follower);
        sleep(MS * 5_000).await;
        cluster.heal();
        sleep(MS * 2_000).await;
        assert_eq!((cluster.leader(), cluster.node(&leader).status().term), (Some(leader.clone()), term));
    });
}

#[test]
fn members_leave_the_leader_too_and_the_last_one_cannot() {
    simulate(13, async |cluster| {
        cluster.grow(&["a", "b", "c", "d"]).await;
        cluster.node("a").propose(put("k", None, "v")).await.expect("written");
        for left in [3, 2, 1] {
            let leader = cluster.led().await;
            let id = cluster.node(&leader).status().node;
            cluster.node(&leader).leave(id).await.expect("the leader leaves");
            cluster.kill(&leader).await;
            cluster.until(|status| status.members.len() == left && !status.members.contains_key(&id)).await;
            let node = cluster.node(&cluster.led().await);
            assert!(node.get("k").await.expect("a read").is_some());
            node.propose(put("k", None, "v")).await.expect("it goes on");
        }
        let last = cluster.node(&cluster.led().await);
        assert_eq!(last.leave(last.status().node).await, Err(Refusal::LastVoter.into()));
    });
}

#[test]
fn foreign_nodes_and_malformed_requests_are_refused() {
    simulate(14, async |cluster| {
        cluster.grow(&["a"]).await;
        let node = cluster.node("a");
        let reply = |bytes: Vec<u8>| wire::decode::<(), Reply>(&bytes).expect("a reply").1;
        let ask =
            |cluster, to| wire::encode(&Envelope { cluster, to }, &Request::Client(ClientRequest::ReadIndex));
        for request in [vec![], vec![7; 100], ask(node.status().cluster, 5)] {
            assert!(matches!(reply(node.serve(&request).await), Reply::Failed(Error::Refused(_))));
        }
        let foreign = reply(node.serve(&ask(3, node.status().node)).await);
        assert!(matches!(foreign, Reply::Failed(Error::Refused(Refusal::OtherCluster { theirs: 3, .. }))));
        let ours = reply(node.serve(&ask(node.status().cluster, 0)).await);
        assert!(matches!(ours, Reply::Client(ClientReply::Index(_))));
        let other = cluster.start("z").await;
        other.bootstrap().await.expect("a cluster of its own");
        let joined = other.join(&["a".into()], MS * 3000).await;
        assert!(
            matches!(joined, Err(StartError::Refused { refusal: Refusal::OtherCluster { .. }, .. })),
            "{joined:?}"
        );
    });
}

#[test]
fn an_admitted_node_that_was_never_reached_bootstraps_no_second_cluster() {
    simulate(17, async |cluster| {
        cluster.grow(&["a"]).await;
        let node = cluster.start("b").await;
        // It was admitted, and then the machine stopped.
        node.inner.store_cluster(cluster.node("a").status().cluster).expect("written");
        drop(node);
        cluster.kill("b").await;
        let again = cluster.start("b").await;
        assert!(matches!(again.bootstrap().await, Err(StartError::Unreached)));
        again.join(&["a".into()], MS * 3000).await.expect("it goes on where it was");
        cluster.until(|status| status.members.len() == 2).await;
    });
}

#[test]
fn a_node_admitted_elsewhere_during_its_bootstrap_bootstraps_nothing() {
    simulate(19, async |cluster| {
        cluster.grow(&["a"]).await;
        let node = cluster.start("b").await;
        // It stopped before it had a cluster, and heard from members when it restarted.
        Bootstrap::of(&node.inner.options.directory).begin().expect("written");
        node.inner.belong(cluster.node("a").status().cluster).expect("written");
        drop(node);
        cluster.kill("b").await;
        let again = cluster.start("b").await;
        assert!(matches!(again.bootstrap().await, Err(StartError::Unreached)));
    });
}

#[test]
fn a_name_of_several_addresses_leads_in_by_any_of_them_and_tells_of_each_that_does_not() {
    simulate(20, async |cluster| {
        cluster.grow(&["a"]).await;
        let node = cluster.start("b").await;
        let Err(StartError::Nobody(failures)) = node.join(&["gone|away".into()], Duration::ZERO).await else {
            panic!("somebody lets it in");
        };
        let asked: Vec<_> = failures.iter().map(|(address, _)| address.as_str()).collect();
        assert_eq!(asked, ["gone|away (gone)", "gone|away (away)"]);
        node.join(&["gone|a".into()], MS * 5000).await.expect("the second address is a member's");
        cluster.until(|status| status.members.len() == 2).await;
    });
}

#[test]
fn a_bootstrap_that_stopped_before_its_first_entry_continues_after_a_restart() {
    simulate(18, async |cluster| {
        let node = cluster.start("a").await;
        Bootstrap::of(&node.inner.options.directory).begin().expect("written");
        node.inner.store_cluster(Identity::draw()).expect("written");
        let named = node.status().cluster;
        drop(node);
        cluster.kill("a").await;
        let again = cluster.start("a").await;
        again.bootstrap().await.expect("bootstrapped");
        assert_eq!(again.status().cluster, named);
    });
}

#[test]
fn a_leader_that_was_cut_off_renews_no_lease_that_the_others_end() {
    simulate(15, async |cluster| {
        cluster.grow(&["a", "b", "c"]).await;
        let leader = cluster.led().await;
        let other = cluster.running().into_iter().find(|name| *name != leader).expect("another");
        let asked = Instant::now();
        let granted = cluster.node(&leader).propose(Command::Grant { ttl_ms: 2000 }).await;
        let Ok(Answer::Granted(lease)) = granted else { panic!("{granted:?}") };
        let write = Write::Put { key: "held".into(), value: b"b"[..].into(), lease: Some(lease) };
        let bound =
            cluster.node(&leader).propose(Command::Commit { expect: vec![], writes: vec![write] }).await;
        assert!(matches!(bound, Ok(Answer::Committed(_))), "{bound:?}");
        cluster.isolate(&leader);
        let deadline = Rc::new(Cell::new(asked + MS * 2000));
        let holder = {
            let (node, deadline) = (cluster.node(&leader), deadline.clone());
            tokio::task::spawn_local(async move {
                loop {
                    let asked = Instant::now();
                    if tokio::time::timeout(MS * 100, node.renew(lease)).await == Ok(Ok(())) {
                        deadline.set(asked + MS * 2000);
                    }
                    sleep(MS * 50).await;
                }
            })
        };
        let end = Instant::now() + MS * 10_000;
        while cluster.node(&other).get("held").await != Ok(None) {
            assert!(Instant::now() < end, "it never went");
            sleep(MS * 20).await;
        }
        assert!(Instant::now() >= deadline.get(), "gone {:?} early", deadline.get() - Instant::now());
        holder.abort();
    });
}
