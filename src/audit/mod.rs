//! From what is known about a lock to what is said about it. Pure: no client, no clock, `now` is an argument; the operator,
//! `fencedlock audit` and the tests call the same functions, so that no two of them can disagree.
//!
//! Start with [`verdict::judge`] for a lock and [`boundary::judge`] for a write boundary; [`assess`] judges many objects at one look, and
//! [`inventory`] finds locks that nobody declared. What must not come in: reading the cluster, reading files, printing.

pub mod assess;
pub mod baseline;
pub mod boundary;
pub mod conditions;
pub mod drill;
pub mod inventory;
pub mod owner;
pub mod rules;
pub mod schema;
pub mod suppress;
pub mod verdict;
