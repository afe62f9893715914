//! Whether anything is exported. Where to, and how often, the SDK reads by itself.

/// What the environment asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether somebody wants spans.
    pub spans: bool,
    /// Whether somebody wants metrics.
    pub metrics: bool,
}

impl Settings {
    /// Of this process.
    #[must_use]
    pub fn of_the_environment() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    /// By the variables of the specification: nothing is exported where no endpoint is named, where `OTEL_SDK_DISABLED` is true, or where the signal's exporter is `none`.
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
