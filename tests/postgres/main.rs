//! The PostgreSQL boundary on a real server: the guard, its proof, the ways around it, activation, recovery.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod activation;
mod by_hand;
mod bypass;
mod conditional;
mod defects;
mod errors;
mod guard;
mod ledger;
mod programs;
mod recovery;
mod support;
