//! The worker's side of a lock: acquiring a Lease as client-go does, renewing it, noticing its loss, giving it back; and waiting for the
//! epoch of that acquisition.
//!
//! Start with [`hold::hold`]. [`acquire::Election`] and [`grant::standing`] are pure; [`elect::compete`] drives the one against a
//! cluster. The operator's own election uses the same; it needs no epoch.

pub mod acquire;
pub mod elect;
pub mod grant;
pub mod hold;
