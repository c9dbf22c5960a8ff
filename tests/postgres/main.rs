//! The PostgreSQL boundary on a real server: the guard, its proof, the ways around it, activation, recovery.

mod activation;
mod by_hand;
mod bypass;
mod defects;
mod errors;
mod guard;
mod recovery;
mod support;
