//! The worker's side of a lock: acquiring a Lease as client-go does, renewing it, noticing its loss, giving it back.
//!
//! Start with [`acquire::Election`], which is pure; [`elect::run`] drives it against a cluster. Nothing here knows FencedLocks: who
//! wants an epoch waits for the lock's grant afterwards.

pub mod acquire;
pub mod elect;
