//! Plain-text tables.

/// Space between columns, in characters.
const GAP: usize = 2;

/// Aligns rows in columns: the first to the left, the others to the right. The first row is the heading.
pub fn render(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text.push_str(line(row, &widths).trim_end());
        text.push('\n');
        if index == 0 {
            let rule = widths.iter().sum::<usize>() + GAP * columns.saturating_sub(1);
            text.push_str(&"-".repeat(rule));
            text.push('\n');
        }
    }
    text
}

fn line(row: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        if column == 0 {
            line.push_str(&format!("{cell:<width$}"));
        } else {
            line.push_str(&format!("{:GAP$}{cell:>width$}", ""));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_align_to_the_left_and_figures_to_the_right() {
        let rows = [["step", "time"], ["format", "0.8 s"], ["µ", "12.0 s"]]
            .map(|row| row.map(String::from).to_vec());
        assert_eq!(render(&rows), "step      time\n--------------\nformat   0.8 s\nµ       12.0 s\n");
    }
}
