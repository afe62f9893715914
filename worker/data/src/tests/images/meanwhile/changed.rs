//! Images that change while their folder is prepared, or between two preparations.

use super::*;

#[test]
fn an_image_that_is_another_one_than_was_listed_ends_it_and_one_that_is_added_only_keeps_it_from_being_listed()
 {
    let images = Images::new();
    let filling = images.filling(0, None).unwrap();
    read(&filling, 0, 0..4).unwrap();
    let changed = &images.listed()[9].path;
    std::fs::write(changed, png(200)).unwrap();
    for _ in 0..2 {
        let error = read(&filling, 2, 1..2).unwrap_err();
        assert!(matches!(&error, DataError::Changed { path } if path.ends_with("a/06.png")), "{error}");
    }
    assert!(matches!(filling.fill(), Err(DataError::Changed { .. })));
    assert!(matches!(read(&filling, 0, 0..4), Err(DataError::Changed { .. })));
    drop(filling);
    let filling = images.filling(0, None).unwrap();
    std::fs::remove_file(changed).unwrap();
    assert!(matches!(read(&filling, 2, 1..2), Err(DataError::Changed { .. })));
    drop(filling);
    let filling = images.filling(0, None).unwrap();
    images.folder.write("a/99.png", png(99));
    assert!(filling.fill().unwrap());
    assert!(files(&images.cache.path().join("data/lists")).unwrap().is_empty());
    drop(filling);
    // The shards of unchanged pieces are found.
    let data = images.begin(0).unwrap();
    data.coming().wait().unwrap();
    assert_eq!(stored(&data), images.expected());
}

#[test]
fn an_image_that_changed_in_place_after_it_was_decoded_is_decoded_again_by_the_next_one() {
    let images = Images::new();
    let mut versions = [png(1), png(2)];
    let bytes = versions.iter().map(Vec::len).max().unwrap();
    let found = versions.each_mut().map(|version| {
        // Bytes after the end of a PNG file are not part of it.
        version.resize(bytes, 0);
        images.folder.write_in_place("a/01.png", version);
        // It is stopped before the folder is prepared.
        read(&images.filling(0, None).unwrap(), 0, 0..4).unwrap()
    });
    assert_ne!(found[0], found[1]);
}
