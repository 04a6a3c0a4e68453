//! Columns for a terminal.

/// Rows below a heading, every column as wide as its widest cell.
pub fn aligned(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let start = out.len();
        for (width, cell) in widths.iter().zip(cells) {
            out.push_str(cell);
            let padding = width + 2 - cell.chars().count();
            out.extend(std::iter::repeat_n(' ', padding));
        }
        out.truncate(start + out[start..].trim_end().len());
        out.push('\n');
    };
    line(&mut heading.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [vec!["a", "bcd", ""], vec!["äöü", "", "x"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let expected = "A    B    C\na    bcd\näöü       x\n";
        assert_eq!(aligned(&["A", "B", "C"], &rows), expected);
    }
}
