//! Tables as kubectl prints them.

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

use crate::api::conditions::printable;

/// Renders rows under a header, columns padded, nothing wrapped.
pub(super) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    render_within(header, rows, None)
}

/// The same, with cells wrapped where the table would be wider.
pub(super) fn render_within(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if let Some(width) = width.and_then(|width| u16::try_from(width).ok()) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_width_that_is_given() {
        let rows = [vec!["a-namespace".to_owned(), "a-name-of-some-length".to_owned(), "NoBoundaryRegistered".to_owned()]];
        let header = ["NAMESPACE", "NAME", "REASON"];
        assert!(render(&header, &rows).lines().all(|line| line.len() > 40 || line.starts_with("NAMESPACE")));
        let narrow = render_within(&header, &rows, Some(40));
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        assert_eq!(render_within(&header, &rows, Some(200)), render(&header, &rows));
    }
}
