//! Every documented command, with its output and exit code. `TRYCMD=overwrite cargo test --test cli` renews what is expected;
//! read the difference before you commit it.

#[test]
fn the_commands_print_what_the_documentation_says() {
    trycmd::TestCases::new().case("tests/cli/*.trycmd").case("README.md").env("NO_COLOR", "1");
}
