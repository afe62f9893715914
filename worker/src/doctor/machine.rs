//! Checks of the machine alone: libtorch, device, threads, disk.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_common::explained::Explained;
use longhaul_common::units::Bytes;
use rustix::fs::{Access, access, statvfs};
use tch::{Device, Kind, Tensor};

use super::report::Finding;
use crate::agent::cache_dir;
use longhaul_engine::{EngineError, choose_device, device_name};

/// Free disk space in bytes below which to warn: prepared data and the state of a model of a billion parameters take more.
const FREE_WARN_BYTES: u64 = 10_000_000_000;
/// Free disk space in bytes below which to fail: identity and prepared data of the smallest run.
const FREE_FAIL_BYTES: u64 = 100_000_000;

/// The driver's list of NVIDIA cards.
const CARDS: &str = "/proc/driver/nvidia/gpus";

/// Reports the loaded libtorch.
pub(super) fn libtorch() -> Finding {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let kind = if maps.contains("/libtorch_cuda.so") { "for CUDA" } else { "for the CPU" };
    let Some(folder) = folder_of_libtorch(&maps) else {
        return Finding::fine("libtorch", format!("a build {kind}, linked into this program"));
    };
    match fs::read_to_string(folder.join("build-version")) {
        Ok(version) => {
            Finding::fine("libtorch", format!("{} {kind}, in {}", version.trim(), folder.display()))
        }
        Err(_) => Finding::fine("libtorch", format!("a build {kind}, in {}", folder.display())),
    }
}

/// Returns the parent of the `lib` folder that libtorch was loaded from, according to the process's memory maps.
fn folder_of_libtorch(maps: &str) -> Option<PathBuf> {
    let line = maps.lines().find(|line| line.ends_with("/libtorch_cpu.so"))?;
    let library = Path::new(&line[line.find('/')?..]);
    library.parent()?.parent().map(Path::to_owned)
}

/// Checks that the device exists and computes.
pub(super) fn device(name: &str) -> Finding {
    let (device, there) = match choose_device(name) {
        Ok(device) => (device, what_there_is(usize::try_from(tch::Cuda::device_count()).unwrap_or(0))),
        Err(EngineError::Device { reason, .. }) => {
            return Finding::fail("device", format!("`{name}` cannot be used"), reason);
        }
        Err(error) => return Finding::fail("device", error.to_string(), ""),
    };
    let cards = graphics_cards(Path::new(CARDS));
    match multiply_on(device) {
        Err(error) => Finding::fail(
            "device",
            format!("{} cannot compute: {error}", device_name(device)),
            "restart this machine's driver, or choose another with --device",
        ),
        Ok(()) if device == Device::Cpu && name == "auto" && !cards.is_empty() => Finding::warn(
            "device",
            format!("cpu, although there is {}", cards.join(", ")),
            "`cargo xtask setup --cuda` and a new build make use of it; if that is done, look at the driver",
        ),
        Ok(()) => {
            let cards = if cards.is_empty() { String::new() } else { format!(" ({})", cards.join(", ")) };
            Finding::fine("device", format!("{}; libtorch finds {there}{cards}", device_name(device)))
        }
    }
}

fn what_there_is(gpus: usize) -> String {
    match gpus {
        0 => "no GPU".to_owned(),
        1 => "cuda:0".to_owned(),
        _ => format!("cuda:0 to cuda:{}", gpus - 1),
    }
}

/// Multiplies two matrices of ones: small, but involves driver, kernels and memory.
fn multiply_on(device: Device) -> Result<(), String> {
    const SIDE: i64 = 64;
    let sum = || -> Result<f64, tch::TchError> {
        let ones = Tensor::f_ones([SIDE, SIDE], (Kind::Float, device))?;
        f64::try_from(ones.f_matmul(&ones)?.f_sum(Kind::Double)?)
    };
    // The first line of libtorch's error is the message, the rest a trace.
    let sum = sum().map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
    let expected = (SIDE * SIDE * SIDE) as f64;
    if sum == expected { Ok(()) } else { Err(format!("a sum is {sum} instead of {expected}")) }
}

/// Returns the driver's card models, ordered by bus address.
fn graphics_cards(folder: &Path) -> Vec<String> {
    let Ok(cards) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = cards.flatten().map(|card| card.path().join("information")).collect();
    files.sort();
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    texts.filter_map(|text| model_of_card(&text)).collect()
}

fn model_of_card(information: &str) -> Option<String> {
    let model = information.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(model.trim().to_owned())
}

/// Compares libtorch's threads with the cores.
pub(super) fn threads(device: &str) -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
    let on_cpu = choose_device(device).is_ok_and(|device| device == Device::Cpu);
    judge_threads(threads, cores, on_cpu)
}

fn judge_threads(threads: usize, cores: usize, on_cpu: bool) -> Finding {
    let says = format!("{threads} for libtorch; this process may use {cores} cores");
    // Half is usual: libtorch counts cores, the system hardware threads.
    if on_cpu && (threads > cores || threads < cores / 2) {
        return Finding::warn(
            "threads",
            says,
            format!("`worker join --threads {cores}`, or correct OMP_NUM_THREADS"),
        );
    }
    Finding::fine("threads", says)
}

/// Checks that the cache folder is writable and has room.
pub(super) fn cache(given: Option<PathBuf>) -> Finding {
    let another = "`--cache-dir DIR` names another folder";
    let folder = match cache_dir(given) {
        Ok(folder) => folder,
        Err(error) => return Finding::fail("cache", Explained(&*error).to_string(), ""),
    };
    // The folder may not exist yet.
    let Some(there) = folder.ancestors().find(|folder| folder.exists()) else {
        return Finding::fail("cache", format!("{} cannot be made", folder.display()), another);
    };
    let usable = || {
        if !there.is_dir() {
            return Err(rustix::io::Errno::NOTDIR);
        }
        access(there, Access::WRITE_OK | Access::EXEC_OK)?;
        let disk = statvfs(there)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    };
    match usable() {
        Ok(free_bytes) => judge_room(&folder, free_bytes),
        Err(error) => Finding::fail("cache", format!("{} cannot be used: {error}", there.display()), another),
    }
}

fn judge_room(folder: &Path, free_bytes: u64) -> Finding {
    let says = format!("{}, {} free", folder.display(), Bytes(free_bytes));
    let remedy = "make room, or name another folder with `--cache-dir DIR`";
    match free_bytes {
        0..FREE_FAIL_BYTES => Finding::fail("cache", says, remedy),
        FREE_FAIL_BYTES..FREE_WARN_BYTES => Finding::warn("cache", says, remedy),
        _ => Finding::fine("cache", says),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    #[test]
    fn libtorch_s_folder_is_read_from_the_memory_maps() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n\
                    7f10-7f11 r-xp 00000000 08:01 13                 /opt/my torch/lib/libtorch_cpu.so\n";
        assert_eq!(folder_of_libtorch(maps), Some(PathBuf::from("/opt/my torch")));
        assert_eq!(folder_of_libtorch("7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n"), None);
    }

    #[test]
    fn the_cpu_computes_and_a_device_that_is_not_there_fails_with_what_is() {
        assert_eq!(device("cpu").verdict, Verdict::Fine);
        let missing = device("cuda:9999");
        assert_eq!(missing.verdict, Verdict::Fail);
        assert!(missing.remedy.contains("cpu"), "{missing:?}");
    }

    #[test]
    fn graphics_cards_are_named_as_the_driver_names_them() {
        let folder = tempfile::tempdir().unwrap();
        for (address, model) in [("0000:41:00.0", "NVIDIA B"), ("0000:01:00.0", "NVIDIA A")] {
            let card = folder.path().join(address);
            fs::create_dir(&card).unwrap();
            fs::write(card.join("information"), format!("Model: \t\t {model}\nIRQ:   	 77\n")).unwrap();
        }
        assert_eq!(graphics_cards(folder.path()), ["NVIDIA A", "NVIDIA B"]);
        assert!(graphics_cards(&folder.path().join("none")).is_empty());
    }

    #[test]
    fn threads_that_do_not_fit_the_cores_are_a_warning_on_a_cpu_only() {
        for (threads, cores, on_cpu, verdict) in [
            (8, 16, true, Verdict::Fine),
            (16, 16, true, Verdict::Fine),
            (1, 1, true, Verdict::Fine),
            (7, 16, true, Verdict::Warn),
            (17, 16, true, Verdict::Warn),
            (1, 16, false, Verdict::Fine),
        ] {
            assert_eq!(judge_threads(threads, cores, on_cpu).verdict, verdict, "{threads} of {cores}");
        }
    }

    #[test]
    fn a_cache_folder_needs_room_and_a_folder_above_it() {
        let room = |bytes| judge_room(Path::new("/c"), bytes).verdict;
        assert_eq!(room(FREE_FAIL_BYTES - 1), Verdict::Fail);
        assert_eq!(room(FREE_FAIL_BYTES), Verdict::Warn);
        assert_eq!(room(FREE_WARN_BYTES), Verdict::Fine);
        let folder = tempfile::tempdir().unwrap();
        let found = cache(Some(folder.path().join("not/yet/there")));
        assert!(found.says.contains("free"), "{found:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = cache(Some(file.path().join("below/a/file")));
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(found.says.contains("Not a directory") && found.remedy.contains("--cache-dir"), "{found:?}");
    }
}
