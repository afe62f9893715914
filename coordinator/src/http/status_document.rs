//! The status as a document: its parts are one object, whose keys other programs read.

use longhaul_run::Status;

const DOCUMENT: &str = include_str!("status_document.json");

#[test]
fn a_status_is_read_and_written_with_the_same_keys_in_the_same_order() {
    let status: Status = serde_json::from_str(DOCUMENT).unwrap();
    assert_eq!(serde_json::to_string_pretty(&status).unwrap(), DOCUMENT.trim_end());
    assert_eq!((status.run.id.as_str(), status.samples.counted), ("07070707", 53));
}

#[test]
fn a_status_of_an_earlier_release_has_no_values_for_later_keys() {
    let mut earlier: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
    let keys = earlier.as_object_mut().unwrap();
    for later in ["paused", "gradient_norm", "encode_ms", "samples_late", "gone", "residuals_lost", "scores"]
    {
        assert!(keys.remove(later).is_some(), "{later}");
    }
    for unknown in ["generation", "loss", "eta_s", "parity"] {
        keys[unknown] = serde_json::Value::Null;
    }
    let status: Status = serde_json::from_value(earlier).unwrap();
    assert!(!status.run.paused && status.cluster.gone.is_empty());
    assert_eq!((status.training.loss, status.progress.generation, status.samples.late), (None, None, 0));
}
