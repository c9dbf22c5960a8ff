//! fencedlock audits how locks are classified in a Kubernetes cluster, provisions ownership epochs for them from
//! real Leases, and says which correctness-critical lock has no write boundary that refuses obsolete owners.
//!
//! Every reconcile has the same shape, and each module belongs to one part of it:
//!
//! ```text
//!  Lease, FencedLock, WriteBoundary, Pod                      watch
//!        │ gather    operator::gather                         needs a client
//!        ▼
//!    Observed ──► decide    epoch, audit                      pure: no client, no clock, `now` is an argument
//!        │ act       operator::reconcile, boundary            every step a CAS, or idempotent and monotone
//!        ▼
//!    report          operator::status, operator::events       one status write, and only when it changes
//! ```
//!
//! Start with [`epoch`] for how a Lease becomes terms, epochs and grants, with [`audit::verdict`] for what is said
//! about a lock, and with [`api`] for what people declare.

pub mod api;
mod apiserver;
pub mod audit;
pub mod boundary;
pub mod cli;
pub mod client;
pub mod epoch;
pub mod ledger;
pub mod operator;
