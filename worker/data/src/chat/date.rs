//! The day of a template's `strftime_now`.

use std::fmt;
use std::str::FromStr;

use crate::DataError;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// Letters of an abbreviated name.
const SHORT: usize = 3;

/// A day of the Gregorian calendar, at midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    year: u32,
    month: u32,
    day: u32,
}

impl FromStr for Date {
    type Err = ();

    /// Parses `YYYY-MM-DD` (ISO 8601).
    fn from_str(text: &str) -> Result<Self, ()> {
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts[..] else { return Err(()) };
        if [year.len(), month.len(), day.len()] != [4, 2, 2] {
            return Err(());
        }
        let number = |part: &str| part.parse::<u32>().map_err(|_| ());
        let date = Self { year: number(year)?, month: number(month)?, day: number(day)? };
        let is_valid = (1..=12).contains(&date.month) && (1..=date.days_of(date.month)).contains(&date.day);
        if is_valid { Ok(date) } else { Err(()) }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl Date {
    /// Reads the value of an option.
    ///
    /// # Errors
    /// It is no day.
    pub(super) fn read(text: &str) -> Result<Self, DataError> {
        text.parse().map_err(|()| DataError::ChatTemplate {
            place: "--date".to_owned(),
            reason: format!("{text:?} is no day such as 2024-07-26"),
        })
    }

    fn days_of(self, month: u32) -> u32 {
        let is_leap =
            self.year.is_multiple_of(4) && !self.year.is_multiple_of(100) || self.year.is_multiple_of(400);
        match month {
            2 => 28 + u32::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Day of the year, from 1.
    fn of_year(self) -> u32 {
        (1..self.month).map(|month| self.days_of(month)).sum::<u32>() + self.day
    }

    /// Day of the week, from Sunday, 0.
    fn of_week(self) -> usize {
        let before = self.year + 399;
        // 400 years are whole weeks, and the year 1 begins with a Monday.
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.of_year();
        (days % 7) as usize
    }

    /// Formats it as `strftime` does.
    ///
    /// # Errors
    /// An unknown directive.
    pub(super) fn formatted(self, format: &str) -> Result<String, String> {
        let (mut out, mut characters) = (String::new(), format.chars());
        let (month, day) = (MONTHS[self.month as usize - 1], DAYS[self.of_week()]);
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            out += &match characters.next() {
                Some('Y') => format!("{:04}", self.year),
                Some('y') => format!("{:02}", self.year % 100),
                Some('m') => format!("{:02}", self.month),
                Some('d') => format!("{:02}", self.day),
                Some('e') => format!("{:2}", self.day),
                Some('j') => format!("{:03}", self.of_year()),
                Some('B') => month.to_owned(),
                Some('b' | 'h') => month[..SHORT].to_owned(),
                Some('A') => day.to_owned(),
                Some('a') => day[..SHORT].to_owned(),
                Some('F') => self.to_string(),
                Some('H' | 'M' | 'S') => "00".to_owned(),
                Some('I') => "12".to_owned(),
                Some('p') => "AM".to_owned(),
                Some('T') => "00:00:00".to_owned(),
                Some('%') => "%".to_owned(),
                Some('-') => match characters.next() {
                    Some('d') => self.day.to_string(),
                    Some('m') => self.month.to_string(),
                    other => return Err(unknown('-', other)),
                },
                other => return Err(unknown('%', other)),
            };
        }
        Ok(out)
    }
}

fn unknown(before: char, directive: Option<char>) -> String {
    let directive = directive.map(String::from).unwrap_or_default();
    format!("strftime_now knows no `{before}{directive}`: write the date into the template")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By Python's `datetime.strftime`.
    #[test]
    fn dates_are_formatted_as_python_does() {
        for (date, format, expected) in [
            ("2024-07-26", "%d %b %Y", "26 Jul 2024"),
            ("2024-02-29", "%A, %B %-d, %Y (%j)", "Thursday, February 29, 2024 (060)"),
            ("2026-11-28", "%a %F %H:%M:%S 100%%", "Sat 2026-11-28 00:00:00 100%"),
            ("2000-01-01", "%a %y-%m-%e", "Sat 00-01- 1"),
            ("1900-03-01", "%A", "Thursday"),
        ] {
            assert_eq!(date.parse::<Date>().unwrap().formatted(format).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in ["", "2024-2-29", "2023-02-29", "2024-13-01", "2024-00-10", "26 Jul 2024", "2024-07-26-1"]
        {
            assert_eq!(text.parse::<Date>(), Err(()), "{text}");
        }
        assert!("2024-07-26".parse::<Date>().unwrap().formatted("%Q").is_err());
    }
}
