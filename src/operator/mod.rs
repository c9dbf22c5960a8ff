//! The operator: watches, reconciles, activates, reports. The only part, with the CLI, that holds a client.
//!
//! Start with [`run()`]. One `unit` serves one scope (the cluster, or one of several namespaces), so that what fails in one
//! namespace stays there. In a unit, `watch` turns events into a queue, `reconcile` takes one lock at a time through
//! gather → [`decide`] → act → report, and `boundaries` does the same for write boundaries. Nothing here judges: the rules
//! are in [`crate::epoch`] and [`crate::audit`].

mod admin;
pub mod announce;
mod boundaries;
mod check;
mod checked;
pub mod decide;
mod error;
mod events;
mod few;
mod follow;
mod followers;
mod gather;
mod groups;
mod guarded;
mod jobs;
mod ledgers;
mod metrics;
mod orphans;
mod prove;
mod quarrel;
mod reconcile;
mod reservation;
mod run;
mod served;
mod settings;
mod signs;
mod status;
mod thin;
mod undeclared;
mod unit;
mod watch;

pub use check::check;
pub use error::Error;
pub use metrics::Metrics;
pub use run::{Stopped, run};
pub use settings::{Election, Scope, Settings, replica_name};
