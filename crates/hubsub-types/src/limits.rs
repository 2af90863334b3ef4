//! The named limits of the data plane. `python/hubsub/tables/limits.toml` defines them, with meaning, range
//! and default; [`crate::tables`] has names and defaults. The control plane sets all of them from its
//! configuration, so the defaults here are for tests and for a node that runs without Python.

macro_rules! limits {
    ($($name:ident = $default:literal;)+) => {
        /// The named limits of a node. 0 means "no limit" only where documented.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Limits { $(pub $name: u64,)+ }

        impl Default for Limits {
            fn default() -> Self { Limits { $($name: $default,)+ } }
        }

        impl Limits {
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Sets one limit by name; returns false if the name is unknown.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return false,
                }
                true
            }

            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}
pub(crate) use limits;

#[cfg(test)]
mod tests {
    use crate::Limits;

    #[test]
    fn every_limit_is_set_by_its_name() {
        let mut limits = Limits::default();
        for (i, name) in Limits::NAMES.iter().enumerate() {
            assert!(limits.set(name, i as u64));
        }
        let values: Vec<u64> = limits.entries().into_iter().map(|(_, v)| v).collect();
        assert_eq!(values, (0..Limits::NAMES.len() as u64).collect::<Vec<_>>());
        assert!(!limits.set("no_such_limit", 1));
    }
}
