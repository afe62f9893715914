//! Choice of a worker's device.

use std::sync::OnceLock;

use tch::{Cuda, Device};

use super::{EngineError, claims};

/// Parses `auto` (the first GPU, or else the CPU), `cpu`, `cuda` or `cuda:1`.
///
/// # Errors
/// No such device exists; the message lists the present ones.
pub fn choose_device(name: &str) -> Result<Device, EngineError> {
    choose_among(name, gpus(), || 0)
}

/// The same for a training worker, which keeps its GPU for its lifetime: `auto` is the first without another worker of this machine.
///
/// # Errors
/// No such device exists; the message lists the present ones.
pub fn claim_device(name: &str) -> Result<Device, EngineError> {
    // Repeated calls get the same one.
    static AUTO: OnceLock<usize> = OnceLock::new();
    let device = choose_among(name, gpus(), || *AUTO.get_or_init(|| claims::claim(gpus())))?;
    if let Device::Cuda(index) = device {
        claims::hold(index);
    }
    Ok(device)
}

fn gpus() -> usize {
    usize::try_from(Cuda::device_count()).unwrap_or(0)
}

/// Returns a device's name for [`choose_device`].
#[must_use]
pub fn device_name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

fn choose_among(name: &str, gpus: usize, free: impl FnOnce() -> usize) -> Result<Device, EngineError> {
    let refuse = |reason: String| Err(EngineError::Device { name: name.to_owned(), reason });
    let there = match gpus {
        0 => "libtorch finds no GPU here; `cpu` works".to_owned(),
        1 => "there are `cpu` and `cuda:0`".to_owned(),
        _ => format!("there are `cpu` and `cuda:0` to `cuda:{}`", gpus - 1),
    };
    let index = match name {
        "cpu" => return Ok(Device::Cpu),
        "auto" if gpus == 0 => return Ok(Device::Cpu),
        "auto" => Some(free()),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|index| index.parse().ok()),
    };
    match index {
        Some(index) if index < gpus => Ok(Device::Cuda(index)),
        Some(_) => refuse(there),
        None => refuse(format!("devices are written `auto`, `cpu` or `cuda:0`; {there}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_there_are_found() {
        for (name, gpus, device) in [
            ("auto", 0, Device::Cpu),
            ("auto", 2, Device::Cuda(1)),
            ("cuda", 2, Device::Cuda(0)),
            ("cpu", 2, Device::Cpu),
            ("cuda", 1, Device::Cuda(0)),
            ("cuda:1", 2, Device::Cuda(1)),
        ] {
            assert_eq!(choose_among(name, gpus, || 1).unwrap(), device);
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_what_is() {
        let message = |name, gpus| choose_among(name, gpus, || 0).unwrap_err().to_string();
        assert_eq!(message("cuda:0", 0), "device `cuda:0`: libtorch finds no GPU here; `cpu` works");
        assert_eq!(message("cuda:4", 4), "device `cuda:4`: there are `cpu` and `cuda:0` to `cuda:3`");
        assert!(message("tpu", 1).contains("devices are written `auto`, `cpu` or `cuda:0`"));
    }
}
