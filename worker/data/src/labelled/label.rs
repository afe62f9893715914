//! The class that a label means.

use longhaul_common::config::Column;

use super::Labelling;

/// Names in a message.
const NAMED_MAX: usize = 10;
/// Longest label shown in a message, in characters.
const SHOWN_CHARACTERS: usize = 40;

impl Labelling {
    /// Returns the class of a label in words: its name, or its number.
    ///
    /// # Errors
    /// There is no such class.
    pub(crate) fn class_of_text(&self, label: &str) -> Result<u32, String> {
        match (self.place_of(label), label.trim().parse()) {
            (Some(class), _) => Ok(class),
            (None, Ok(number)) => self.class_of_number(number),
            (None, Err(_)) if label.trim().is_empty() => {
                Err(format!("its {} is empty{UNPUBLISHED}", called(&self.label)))
            }
            (None, Err(_)) => {
                let is_whole = label.trim().parse::<f64>().is_ok_and(|number| number.fract() == 0.0);
                let remedy = if is_whole { AS_FLOATS } else { "" };
                Err(format!("{}{remedy}", self.unknown(&format!("{:?}", shown(label)))))
            }
        }
    }

    /// Returns the class of a whole number: that of this name, or, unless some name is a number, the one counted from 0.
    ///
    /// # Errors
    /// There is no such class.
    pub(super) fn class_of_number(&self, number: i64) -> Result<u32, String> {
        let are_numbers = self.labels.iter().any(|name| name.trim().parse::<i64>().is_ok());
        let by_name = self.place_of(&number.to_string());
        let counted = u32::try_from(number).ok().filter(|class| u64::from(*class) < self.classes());
        match by_name.or(counted.filter(|_| !are_numbers)) {
            Some(class) => Ok(class),
            None if number == -1 => Err(format!("{}{UNPUBLISHED}", self.unknown("-1"))),
            None => Err(self.unknown(&number.to_string())),
        }
    }

    fn place_of(&self, label: &str) -> Option<u32> {
        self.labels.iter().position(|name| name == label).map(|place| place as u32)
    }

    fn unknown(&self, label: &str) -> String {
        let named: Vec<String> = self.labels.iter().take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
        let more = self.labels.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("its {} is {label}, and the classes are {}{more}", called(&self.label), named.join(", "))
    }
}

/// Returns a column as a message names it.
pub(super) fn called(column: &Column) -> String {
    match column {
        Column::Name(_) => column.to_string(),
        Column::Number(_) => format!("column {column}"),
    }
}

/// The remedy for whole numbers of pandas in a column that also has missing values.
const AS_FLOATS: &str = ": write whole numbers (pandas: `astype(\"Int64\")`)";
/// The remedy for test splits.
const UNPUBLISHED: &str = ": the labels of some test splits are not published; take another split";

fn shown(label: &str) -> String {
    label.chars().take(SHOWN_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::TooLong;

    use super::*;

    fn labelling(labels: &[&str]) -> Labelling {
        Labelling {
            text: Column::Name("text".to_owned()),
            text_pair: None,
            label: Column::Name("label".to_owned()),
            labels: labels.iter().map(ToString::to_string).collect(),
            too_long: TooLong::Cut,
            length: 8,
        }
    }

    #[test]
    fn a_label_is_a_name_or_a_number_from_zero_unless_names_are_numbers() {
        let (names, numbers) = (labelling(&["no", "yes"]), labelling(&["1", "2", "3"]));
        assert_eq!(names.class_of_text("yes"), Ok(1));
        assert_eq!(names.class_of_text("0"), Ok(0));
        assert_eq!(names.class_of_number(1), Ok(1));
        assert_eq!(numbers.class_of_text("3"), Ok(2));
        assert_eq!(numbers.class_of_number(1), Ok(0));
        for (refused, words) in [
            (names.class_of_text("maybe"), "its `label` is \"maybe\", and the classes are \"no\", \"yes\""),
            (names.class_of_number(2), "its `label` is 2, and the classes are \"no\""),
            (names.class_of_text(" "), "its `label` is empty: the labels of some test splits"),
            (
                names.class_of_number(-1),
                "its `label` is -1, and the classes are \"no\", \"yes\": the labels of",
            ),
            (names.class_of_text("YES"), "its `label` is \"YES\""),
            (
                names.class_of_text("1.0"),
                "its `label` is \"1.0\", and the classes are \"no\", \"yes\": write whole numbers",
            ),
            (numbers.class_of_number(0), "its `label` is 0, and the classes are \"1\", \"2\", \"3\""),
        ] {
            let message = refused.unwrap_err();
            assert!(message.starts_with(words), "{message}");
        }
    }
}
