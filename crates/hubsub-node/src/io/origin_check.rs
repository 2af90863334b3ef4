//! The origin check ([docs/adr/0018-a-page-is-known-by-its-origin.md]): decides which requests a node serves,
//! those of pages from listed origins and those that come from no page.
//!
//! A browser sends the page's origin with each WebSocket and with each cross-origin request, but not with a
//! same-origin GET. So after DNS rebinding (a page's owner points its name to this node's address), the page
//! could read everything here without an `Origin` header; but the name is in `Host`.
//!
//! Invariant: a request without origin is served only under host names that no such page can have.

use std::error::Error;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Suffixes of names that nobody can register.
const NOBODYS: [&str; 3] = [".localhost", ".local", ".internal"];

#[derive(Clone, Default, Debug)]
pub struct OriginCheck(Arc<Listed>);

#[derive(Default, Debug)]
struct Listed {
    /// Origins of pages that are served; `*` is any.
    origins: Vec<String>,
    /// Host names of the node; `*` is any.
    hosts: Vec<String>,
}

/// A refused request: the origin of its page, or its host name for this node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ForeignOrigin {
    /// The origin is not listed.
    Origin(Box<str>),
    /// The host name is not one of the node's.
    Host(Box<str>),
}

impl fmt::Display for ForeignOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForeignOrigin::Origin(origin) => write!(f, "pages of this origin are not welcome: {origin}"),
            ForeignOrigin::Host(host) => write!(f, "this is no name of the node: {host}"),
        }
    }
}

impl Error for ForeignOrigin {}

impl OriginCheck {
    /// Serves pages of these origins, under these host names; `*` is any in both lists.
    pub fn new(origins: Vec<String>, hosts: Vec<String>) -> OriginCheck {
        OriginCheck(Arc::new(Listed { origins, hosts }))
    }

    /// Checks a request that arrived at the local address `own`.
    ///
    /// # Errors
    /// Its origin is not listed, or it has none and its host name is not one of the node's.
    pub fn welcome(
        &self,
        origin: Option<&str>,
        host: &str,
        own: Option<SocketAddr>,
    ) -> Result<(), ForeignOrigin> {
        match origin {
            Some(origin) if self.is_listed(origin, own) => Ok(()),
            Some(origin) => Err(ForeignOrigin::Origin(origin.into())),
            None if self.is_called(host) => Ok(()),
            None => Err(ForeignOrigin::Host(host.into())),
        }
    }

    /// Whether pages of this origin are served. The exact address of the connection counts as listed, as sent
    /// by clients that are not browsers. A host name does not: a page's owner controls where it points.
    pub fn is_listed(&self, origin: &str, own: Option<SocketAddr>) -> bool {
        let is_own = |own: SocketAddr| {
            let host = host_of(origin);
            host.is_some_and(|host| host == own.to_string() || host == format!("localhost:{}", own.port()))
        };
        self.0.origins.iter().any(|of| of == "*" || of.eq_ignore_ascii_case(origin))
            || own.is_some_and(is_own)
    }

    /// Whether no foreign page can use this host name for the node, with or without a port: it is an address,
    /// a name that nobody can register, one of the node's names, or the name of a listed origin.
    fn is_called(&self, host: &str) -> bool {
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        let is_address = name.parse::<Ipv4Addr>().is_ok()
            || name
                .strip_prefix('[')
                .and_then(|name| name.strip_suffix(']'))
                .is_some_and(|name| name.parse::<Ipv6Addr>().is_ok());
        let is_nobodys = !name.contains('.') || NOBODYS.iter().any(|end| name.ends_with(end));
        let Listed { origins, hosts } = &*self.0;
        let of_origin = |origin: &String| {
            origin == "*"
                || host_of(origin).is_some_and(|host| without_port(host).eq_ignore_ascii_case(&name))
        };
        is_address
            || is_nobodys
            || hosts.iter().any(|host| host == "*" || host.eq_ignore_ascii_case(&name))
            || origins.iter().any(of_origin)
    }
}

fn host_of(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, host)| host)
}

fn without_port(host: &str) -> &str {
    let port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    port.map_or(host, |(name, _)| name)
}

/// Response headers that let a page of `origin` read the response, and prevent caching and its use as a
/// script.
pub(crate) fn fields_for(origin: Option<&str>) -> String {
    let allowed =
        origin.map_or_else(String::new, |origin| format!("Access-Control-Allow-Origin: {origin}\r\n"));
    format!("{allowed}Vary: Origin\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(origins: &[&str], hosts: &[&str]) -> OriginCheck {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        OriginCheck::new(owned(origins), owned(hosts))
    }

    #[test]
    fn who_says_no_origin_is_served_under_names_that_no_stranger_has() {
        let pages = pages(&["https://chat.example:8443"], &["Hub.Example"]);
        for host in [
            "127.0.0.1:4000",
            "10.1.2.3",
            "[::1]:4000",
            "[fe80::1]",
            "localhost:4000",
            "LOCALHOST.",
            "a.localhost",
            "n1:4000",
            "hubsub.default.svc.cluster.local",
            "db.corp.internal:80",
            "hub.example:4000",
            "HUB.example.",
            "chat.example",
            "chat.example:4000",
        ] {
            assert_eq!(pages.welcome(None, host, None), Ok(()), "{host}");
        }
        for host in [
            "evil.example:4000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "evil.example:",
            "a.b",
            "hub.example.evil.example",
            "notlocalhost.com",
            "1.2.3.4.5",
            "internal.com",
            "[::1].evil.example",
        ] {
            assert_eq!(pages.welcome(None, host, None), Err(ForeignOrigin::Host(host.into())), "{host}");
        }
    }

    #[test]
    fn who_says_an_origin_is_judged_by_it_alone() {
        let (pages, own) = (pages(&["https://chat.example"], &[]), "127.0.0.1:4000".parse().ok());
        for origin in
            ["https://chat.example", "HTTPS://chat.example", "http://127.0.0.1:4000", "http://localhost:4000"]
        {
            assert_eq!(pages.welcome(Some(origin), "evil.example", own), Ok(()), "{origin}");
        }
        for origin in
            ["http://evil.example:4000", "http://127.0.0.1:4001", "null", "", "https://chat.example:81"]
        {
            let refused = Err(ForeignOrigin::Origin(origin.into()));
            assert_eq!(pages.welcome(Some(origin), "127.0.0.1:4000", own), refused, "{origin}");
        }
    }

    #[test]
    fn where_any_is_listed_any_is_welcome() {
        assert_eq!(pages(&["*"], &[]).welcome(Some("http://evil.example"), "evil.example", None), Ok(()));
        assert_eq!(pages(&["*"], &[]).welcome(None, "evil.example", None), Ok(()));
        let by_any_name = pages(&[], &["*"]);
        assert_eq!(by_any_name.welcome(None, "evil.example", None), Ok(()));
        assert!(by_any_name.welcome(Some("http://evil.example"), "evil.example", None).is_err());
    }
}
