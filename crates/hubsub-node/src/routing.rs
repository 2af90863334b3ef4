//! What a shard does with what it is told of routes: it joins, and its broker leads, follows or waits. See
//! `routes`, which tells it.

use crate::control::Level;
use crate::core::Core;
use crate::routes::RouteMail;
use hubsub_route::{Hubs, Leader};
use hubsub_types::ConnKey;
use std::sync::Arc;

impl Core {
    /// Acts on a letter about routes.
    pub fn route_mail(&mut self, mail: RouteMail) {
        match mail {
            RouteMail::Join(hubs) => self.join_cluster(hubs),
            RouteMail::Leaders(rows) => {
                for (hub, term, leader) in rows {
                    if leader == Leader::Me
                        && let Some(log) = &mut self.rim.log
                    {
                        log.leads(hub, term);
                    }
                    self.broker.route(hub, term, leader, self.rim.now, &mut self.rim);
                }
            }
        }
    }

    /// Rooms have other homes from now on. Clients come later than this; one that was early goes.
    fn join_cluster(&mut self, hubs: Arc<Hubs>) {
        let keys: Vec<ConnKey> = self.rim.conns.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.broker.disconnected(key, self.rim.now, &mut self.rim);
            self.broker.connected(key);
            self.rim.log_conn(Level::Info, "client was too early", key, Vec::new());
            self.rim.close_now(key);
        }
        self.broker.join(hubs);
    }
}
