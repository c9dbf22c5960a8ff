//! Tables as kubectl prints them.

use comfy_table::{Table, presets::NOTHING};

use crate::api::conditions::printable;

/// Renders rows under a header, columns padded, nothing wrapped.
pub(super) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
