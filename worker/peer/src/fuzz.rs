//! Entry points for fuzzers of peers' postcard messages.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::copies::read_list;
use super::request::{Manifest, Request};

/// Decodes any bytes as a request, as a state's manifest, and as a checkpoint's files.
pub fn messages(bytes: &[u8]) {
    there_and_back::<Request>(bytes);
    there_and_back::<Manifest>(bytes);
    if let Ok(files) = read_list(bytes) {
        let written = postcard::to_stdvec(&files).expect("a decoded message can be encoded");
        assert_eq!(read_list(&written).expect("an encoded message can be decoded"), files);
        assert!(files.iter().all(|file| !file.name().contains('/')));
    }
}

fn there_and_back<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = postcard::from_bytes::<T>(bytes) {
        let written = postcard::to_stdvec(&message).expect("a decoded message can be encoded");
        assert!(postcard::from_bytes::<T>(&written).expect("an encoded message can be decoded") == message);
    }
}
