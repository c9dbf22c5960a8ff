//! What the tests share: the control plane, a namespace with an operator in it, Leases as clients write them, waiting.

pub mod lab;
pub mod lease;
pub mod plane;
pub mod proxy;
pub mod requests;

pub use lab::Lab;
