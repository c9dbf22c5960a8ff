//! The PostgreSQL boundary on a real server: the guard, its proof, the ways around it, activation, recovery.

mod guard;
mod support;
