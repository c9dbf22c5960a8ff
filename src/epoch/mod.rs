//! From observations of a Lease to terms, epochs and grants. Everything here is pure: no client, no clock, no I/O.
//! The operator, the tests and the model call the same functions.
//!
//! Start with [`grant::decide`]. What must not come in: anything that reads or writes the cluster, and any judgement
//! about whether a Lease has expired — the operator never decides that (protocol section 1).

mod holder;
mod number;

pub mod claim;
pub mod grant;
pub mod mint;
pub mod pod;
pub mod recent;
pub mod recorded;
pub mod recover;
pub mod revoke;
pub mod term;

pub use holder::{Holder, HolderError};
pub use number::{Epoch, EpochError, EpochFloor};
