//! The PostgreSQL boundary on a real server: the guard, its proof, the ways around it, activation, recovery.

mod activation;
mod defects;
mod guard;
mod support;
