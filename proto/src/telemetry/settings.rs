//! Switches of the export. The SDK itself reads destination and interval.

/// Export requested by the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether spans are exported.
    pub spans: bool,
    /// Whether metrics are exported.
    pub metrics: bool,
}

impl Settings {
    /// Reads this process's environment.
    #[must_use]
    pub fn of_the_environment() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Applies the specification: no export without an endpoint, with `OTEL_SDK_DISABLED` true, or with the
    /// signal's exporter `none`.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).map(|value| value.trim().to_lowercase());
        let is_disabled = variable("OTEL_SDK_DISABLED").as_deref() == Some("true");
        let wants = |signal: &str| {
            let endpoints =
                ["OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")];
            let has_endpoint =
                endpoints.iter().any(|name| variable(name).is_some_and(|endpoint| !endpoint.is_empty()));
            let is_off = variable(&format!("OTEL_{signal}_EXPORTER")).as_deref() == Some("none");
            has_endpoint && !is_disabled && !is_off
        };
        Self { spans: wants("TRACES"), metrics: wants("METRICS") }
    }
}
