//! The header of a bulk frame, and the body behind it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_proto::frame::{FRAME_BODY_BYTES_MAX, Frame, FrameHeader};

fuzz_target!(|bytes: &[u8]| {
    let Some((start, body)) = bytes.split_first_chunk() else { return };
    let Ok(header) = FrameHeader::decode(start) else { return };
    assert!(header.body_len <= FRAME_BODY_BYTES_MAX);
    assert_eq!(&header.encode(), start);
    if let Ok(frame) = Frame::assemble(header, Bytes::copy_from_slice(body)) {
        assert_eq!(Frame::new(*frame.meta(), frame.body().clone()), Ok(frame));
    }
});
