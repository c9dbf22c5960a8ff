//! How much memory a process holds, as the kernel counts it.

/// A line of /proc/PID/status, in MiB; `None` of a process that has ended.
pub fn of(pid: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}
