//! stub
/// stub
pub fn run(_: std::env::ArgsOs) -> std::process::ExitCode {
    for c in crate::api::crd::all().unwrap() {
        println!("---\n{}", crate::api::crd::to_yaml(&c).unwrap());
    }
    std::process::ExitCode::SUCCESS
}
