//! The only module that Python imports. Each function converts, releases the interpreter and calls, maps the
//! error; nothing else. The interface is documented in `python/hubsub/_core.pyi`.

/// A Python dict of `name = value` pairs.
macro_rules! dict {
    ($py:expr, $($name:ident = $value:expr),+ $(,)?) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item(stringify!($name), $value)?;)+
        dict
    }};
}

mod answers;
mod cluster;
mod config;
mod core;
mod leads;
mod offline;
mod raft;
mod routes;
mod rows;
mod scan;

use hubsub_types::{ErrorCode, Limits};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes};

#[global_allocator]
static ALLOCATOR: hubsub_node::memory::Allocator = hubsub_node::memory::Allocator;

/// The native module of HubSub: a node's data plane and log tools.
#[pymodule(name = "_core")]
mod door {
    #[pymodule_export]
    use super::core::Core;
    #[pymodule_export]
    use super::offline::{log_manifest, log_repair, log_show, log_verify};
    #[pymodule_export]
    use super::raft::Coordinator;
    #[pymodule_export]
    use super::rows::RowReader;
    #[pymodule_export]
    use super::{error_codes, limits_default, room_of};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("BUILD_PROFILE", hubsub_node::BUILD_PROFILE)
    }
}

/// Returns name and default of every limit of the data plane.
#[pyfunction]
fn limits_default(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyDict>> {
    Limits::default().entries().into_py_dict(py)
}

/// Returns `(code, Redis error line, retryable)` of every error.
#[pyfunction]
fn error_codes() -> Vec<(&'static str, &'static str, bool)> {
    ErrorCode::ALL.iter().map(|e| (e.code(), e.resp(), e.retryable())).collect()
}

/// Returns the room of a topic and the name of its class.
///
/// Args:
///     classes: Room classes as in the resolved configuration, in order of precedence.
///     hash_tags: Whether a hash tag in the topic names the room.
///     topic: The topic, as bytes.
///
/// Raises:
///     ValueError: If a class is invalid.
#[pyfunction]
fn room_of<'py>(
    py: Python<'py>,
    classes: &Bound<'py, PyAny>,
    hash_tags: bool,
    topic: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, String)> {
    let table = config::class_table(classes, hash_tags)?;
    let room = table.room(topic);
    let class = table.get(table.class_of_room(&room)).name.clone();
    Ok((PyBytes::new(py, &room), class))
}
