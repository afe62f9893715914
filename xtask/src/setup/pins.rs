//! The pinned wheels and the parts of them that are kept.
//!
//! The CUDA list is torch 2.11.0's own: the `Requires-Dist` lines of its METADATA, with `cuda-toolkit==13.0.2`
//! resolved to the packages its extras pin. Triton and the Python-only packages are left out, as nothing here
//! runs Python.

use std::fmt;

/// The only libtorch version supported by `tch` 0.24.
pub const LIBTORCH_VERSION: &str = "2.11.0";

/// The folder with the licences below an assembled one, with a folder for each wheel's name.
pub const LICENCES_DIR: &str = "licences";

/// The libtorch to assemble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Without any CUDA kernel: 0.5 GB on disk.
    Cpu,
    /// With CUDA 13 and the NVIDIA libraries it needs. This has never been run.
    Cuda,
}

impl Variant {
    /// The wheels that this variant is assembled from.
    pub fn wheels(self) -> &'static [Wheel] {
        match self {
            Self::Cpu => &CPU_WHEELS,
            Self::Cuda => &CUDA_WHEELS,
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

/// One package of PyPI, pinned.
#[derive(Debug)]
pub struct Wheel {
    /// The distribution's name, as pip takes it.
    pub name: &'static str,
    /// Its exact version.
    pub version: &'static str,
    /// A platform tag of the wheel: pip matches `manylinux` tags by equality when it downloads for a
    /// platform.
    pub platform: &'static str,
    /// The file's name on PyPI.
    pub file: &'static str,
    /// The file's SHA-256, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// The parts to unpack, with their destinations.
    pub parts: &'static [Part],
}

/// Files of a wheel that are kept.
#[derive(Debug)]
pub struct Part {
    /// A file in the wheel, or a folder with a final slash.
    pub from: &'static str,
    /// Its destination below the assembled folder; a folder also ends in a slash here.
    pub to: &'static str,
}

const fn same(path: &'static str) -> Part {
    Part { from: path, to: path }
}

const TORCH: Wheel = Wheel {
    name: "torch",
    version: LIBTORCH_VERSION,
    platform: "manylinux_2_28_x86_64",
    file: "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    sha256: "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
    parts: &[],
};

/// `libtorch_cpu.so` is the same file in every wheel and loads only with the CUDA runtime and CUPTI
/// libraries, even if it never calls them. They are placed in its own folder, where its run path ends.
static CPU_WHEELS: [Wheel; 3] = [
    Wheel {
        parts: &[
            same("torch/include/"),
            same("torch/lib/libc10.so"),
            same("torch/lib/libgomp.so.1"),
            same("torch/lib/libtorch_cpu.so"),
        ],
        ..TORCH
    },
    Wheel {
        name: "nvidia-cuda-runtime",
        version: "13.0.96",
        platform: "manylinux2014_x86_64",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        parts: &[Part { from: "nvidia/cu13/lib/libcudart.so.13", to: "torch/lib/libcudart.so.13" }],
    },
    Wheel {
        name: "nvidia-cuda-cupti",
        version: "13.0.85",
        platform: "manylinux_2_25_x86_64",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        parts: &[Part { from: "nvidia/cu13/lib/libcupti.so.13", to: "torch/lib/libcupti.so.13" }],
    },
];

/// The run path of torch's libraries leads to `../../nvidia`, so the wheels' own layout is kept.
static CUDA_WHEELS: [Wheel; 16] = [
    Wheel { parts: &[same("torch/include/"), same("torch/lib/")], ..TORCH },
    Wheel {
        name: "nvidia-cublas",
        version: "13.1.0.3",
        platform: "manylinux_2_27_x86_64",
        file: "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cuda-runtime",
        version: "13.0.96",
        platform: "manylinux2014_x86_64",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cufft",
        version: "12.0.0.61",
        platform: "manylinux2014_x86_64",
        file: "nvidia_cufft-12.0.0.61-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cufile",
        version: "1.15.1.6",
        platform: "manylinux2014_x86_64",
        file: "nvidia_cufile-1.15.1.6-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cuda-cupti",
        version: "13.0.85",
        platform: "manylinux_2_25_x86_64",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-curand",
        version: "10.4.0.35",
        platform: "manylinux_2_27_x86_64",
        file: "nvidia_curand-10.4.0.35-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cusolver",
        version: "12.0.4.66",
        platform: "manylinux_2_27_x86_64",
        file: "nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cusparse",
        version: "12.6.3.3",
        platform: "manylinux2014_x86_64",
        file: "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-nvjitlink",
        version: "13.0.88",
        platform: "manylinux2010_x86_64",
        file: "nvidia_nvjitlink-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        sha256: "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cuda-nvrtc",
        version: "13.0.88",
        platform: "manylinux2010_x86_64",
        file: "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-nvtx",
        version: "13.0.85",
        platform: "manylinux1_x86_64",
        file: "nvidia_nvtx-13.0.85-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
        sha256: "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cudnn-cu13",
        version: "9.19.0.56",
        platform: "manylinux_2_27_x86_64",
        file: "nvidia_cudnn_cu13-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl",
        sha256: "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-cusparselt-cu13",
        version: "0.8.0",
        platform: "manylinux2014_x86_64",
        file: "nvidia_cusparselt_cu13-0.8.0-py3-none-manylinux2014_x86_64.whl",
        sha256: "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-nccl-cu13",
        version: "2.28.9",
        platform: "manylinux_2_18_x86_64",
        file: "nvidia_nccl_cu13-2.28.9-py3-none-manylinux_2_18_x86_64.whl",
        sha256: "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
        parts: &[same("nvidia/")],
    },
    Wheel {
        name: "nvidia-nvshmem-cu13",
        version: "3.4.5",
        platform: "manylinux2014_x86_64",
        file: "nvidia_nvshmem_cu13-3.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
        parts: &[same("nvidia/")],
    },
];
