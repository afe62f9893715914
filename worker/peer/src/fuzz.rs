//! What peers ask and answer in postcard, as fuzzers try it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::copies::read_list;
use super::request::{Manifest, Request};

/// Takes any bytes as a request, as what a state consists of, and as the files of a checkpoint.
pub fn messages(bytes: &[u8]) {
    there_and_back::<Request>(bytes);
    there_and_back::<Manifest>(bytes);
    if let Ok(files) = read_list(bytes) {
        let written = postcard::to_stdvec(&files).expect("what was read can be written");
        assert_eq!(read_list(&written).expect("what was written can be read"), files);
        assert!(files.iter().all(|file| !file.name().contains('/')));
    }
}

fn there_and_back<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = postcard::from_bytes::<T>(bytes) {
        let written = postcard::to_stdvec(&message).expect("what was read can be written");
        assert!(postcard::from_bytes::<T>(&written).expect("what was written can be read") == message);
    }
}
