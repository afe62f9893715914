//! Sources on a web server. Those in object storage are tested in `worker/tests/integration/data_in_s3.rs`.

use super::server::Server;
use super::*;
use crate::cache::files;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data").join(name)).unwrap()
}

fn lines(url: &str) -> String {
    format!("sources = [{{ url = \"{url}\" }}]\nsequence_length = 8\nvalidation_share = 0.0")
}

/// Returns a text that differs at each place.
fn long_text(bytes: usize) -> String {
    let mut text: String =
        (0..bytes as u32 / 8).map(|n| format!("{:08x}\n", n.wrapping_mul(2_654_435_761))).collect();
    text.truncate(bytes);
    text
}

#[test]
fn each_format_is_read_from_a_server_as_from_a_disk_and_no_copy_stays() {
    let names =
        ["records.jsonl.zst", "records.csv", "snappy.parquet", "large.arrow", "stream.arrow", "tokens.bin"];
    let served: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (*name, fixture(name))).collect();
    let server = Server::start(&served);
    for name in names {
        let folder = Folder::new();
        folder.write(name, fixture(name));
        let key = match name {
            "tokens.bin" => "",
            "records.jsonl.zst" => ", field = \"body\"",
            _ => ", column = \"body\"",
        };
        let open = |place: &str| {
            let lines =
                format!("sources = [{{ {place}{key} }}]\nsequence_length = 8\nvalidation_share = 0.0");
            // Its tokens have their own vocabulary.
            let result = folder.open(&lines);
            result
                .map(|data| data.data_hash())
                .map_err(|error| error.to_string().replace(&server.url(""), ""))
        };
        let (there, here) =
            (open(&format!("url = \"{}\"", server.url(name))), open(&format!("path = \"{name}\"")));
        let here = here.map_err(|error| error.replace(&format!("{}/", folder.path().display()), ""));
        assert_eq!(there, here, "{name}");
        assert!(name == "tokens.bin" || there.is_ok(), "{there:?}");
        assert!(files(&folder.path().join("cache/data/fetched")).unwrap().is_empty());
    }
}

/// Files of images and labels; the connection to the first is cut.
#[test]
fn images_and_their_labels_are_read_from_a_server_as_from_a_disk() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    let names = ["images-idx3-ubyte", "labels-idx1-ubyte"];
    let [images, labels] = names.map(|name| std::fs::read(folder.join(name)).unwrap());
    let server = Server::start(&[(names[0], images), (names[1], labels.clone())]);
    server.behaviour().cuts = (2, 500);
    let open = |source: String| {
        let lines = format!(
            "image = {{ channels = 1, height = 9, width = 12, classes = 3 }}\nvalidation_share = 0.0\nsources = [{{ {source} }}]"
        );
        Folder::new().open(&lines).map(|data| (data.data_hash(), data.samples()))
    };
    let there = || {
        let [images, labels] = names.map(|name| server.url(name));
        open(format!("url = \"{images}\", labels = \"{labels}\""))
    };
    let [images, labels_here] = names.map(|name| folder.join(name));
    let here = open(format!("path = {images:?}, labels = {labels_here:?}")).unwrap();
    assert_eq!(there().unwrap(), here);
    server.behaviour().files.insert(format!("/{}", names[1]), labels[..labels.len() - 1].to_vec());
    let message = there().unwrap_err().to_string();
    assert!(message.contains(&server.url(names[1])) && message.contains("it is cut off there"), "{message}");
}

#[test]
fn a_cut_connection_is_taken_up_where_it_was() {
    let text_ = long_text(700_000);
    let server = Server::start(&[("text.txt", text_.clone().into())]);
    server.behaviour().cuts = (3, 200_000);
    let data = Folder::new();
    let data = data.open(&lines(&server.url("text.txt"))).unwrap();
    assert_eq!(text(&data), text_);
    assert_eq!(server.behaviour().begun_at, [0, 200_000, 400_000, 600_000]);
}

#[test]
fn a_server_that_knows_no_ranges_is_read_anew_and_no_byte_comes_twice() {
    let text_ = long_text(500_000);
    let server = Server::start(&[("text.txt", text_.clone().into())]);
    {
        let mut behaviour = server.behaviour();
        (behaviour.cuts, behaviour.knows_no_ranges) = ((2, 200_000), true);
    }
    let folder = Folder::new();
    assert_eq!(text(&folder.open(&lines(&server.url("text.txt"))).unwrap()), text_);
}

#[test]
fn a_table_whose_connection_is_cut_is_fetched_whole() {
    let server = Server::start(&[("a.parquet", fixture("snappy.parquet"))]);
    server.behaviour().cuts = (2, 100);
    let folder = Folder::new();
    folder.write("a.parquet", fixture("snappy.parquet"));
    let open = |place: &str| {
        let source = format!("sources = [{{ {place}, column = \"body\" }}]\nsequence_length = 8");
        folder.open(&source).unwrap().data_hash()
    };
    assert_eq!(open(&format!("url = \"{}\"", server.url("a.parquet"))), open("path = \"a.parquet\""));
}

#[test]
fn what_is_there_is_not_fetched_again_and_what_changed_is() {
    let server = Server::start(&[("text.txt", alphabet(5000).into())]);
    let (folder, url) = (Folder::new(), server.url("text.txt"));
    let first = folder.open(&lines(&url)).unwrap().data_hash();
    assert_eq!(folder.open(&lines(&url)).unwrap().data_hash(), first);
    assert_eq!(server.behaviour().begun_at.len(), 1);
    {
        let mut behaviour = server.behaviour();
        behaviour.files.insert("/text.txt".to_owned(), alphabet(5000).to_uppercase().into());
        behaviour.etag = Some("\"two\"".to_owned());
    }
    assert_eq!(text(&folder.open(&lines(&url)).unwrap()), alphabet(5000).to_uppercase());
}

#[test]
fn a_date_of_change_does_for_an_etag_and_nothing_does_not() {
    let server = Server::start(&[("text.txt", alphabet(500).into())]);
    let (folder, url) = (Folder::new(), server.url("text.txt"));
    server.behaviour().etag = None;
    let message = folder.open(&lines(&url)).unwrap_err().to_string();
    assert!(message.contains(&url) && message.contains("neither an ETag nor a date"), "{message}");
    server.behaviour().modified = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
    assert_eq!(text(&folder.open(&lines(&url)).unwrap()), alphabet(500));
    server.behaviour().files.insert("/text.txt".to_owned(), alphabet(500).to_uppercase().into());
    server.behaviour().modified = Some("Sun, 06 Nov 1994 08:49:38 GMT".to_owned());
    assert_eq!(text(&folder.open(&lines(&url)).unwrap()), alphabet(500).to_uppercase());
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let server = Server::start(&[("text.txt", long_text(300_000).into())]);
    {
        let mut behaviour = server.behaviour();
        behaviour.cuts = (1, 100_000);
        behaviour.next_etag = Some("\"two\"".to_owned());
    }
    let (folder, url) = (Folder::new(), server.url("text.txt"));
    let message = folder.open(&lines(&url)).unwrap_err().to_string();
    assert!(message.contains(&url) && message.contains("it was changed since it was looked at"), "{message}");
    assert!(files(&folder.path().join("cache/data/lists")).unwrap().is_empty());
}

#[test]
fn what_a_server_refuses_is_said_with_its_url_and_a_remedy_at_once() {
    let server = Server::start(&[]);
    let (folder, url) = (Folder::new(), server.url("a.txt"));
    for (status, words) in [
        ("403 Forbidden", "access is denied (403 Forbidden)"),
        ("401 Unauthorized", "AWS_ACCESS_KEY_ID"),
        ("404 Not Found", "is the URL right"),
        ("302 Found", "leads to no file: 302 Found"),
    ] {
        server.behaviour().status = Some(status);
        let message = folder.open(&lines(&url)).unwrap_err().to_string();
        assert!(message.contains(&url) && message.contains(words), "{message}");
    }
}

#[test]
fn what_opens_a_url_is_neither_told_nor_kept() {
    let server = Server::start(&[("text.jsonl", b"{\"text\": \"fine\"}\nnot".to_vec())]);
    let (folder, url) = (Folder::new(), format!("{}?X-Amz-Signature=secret", server.url("text.jsonl")));
    let refused = folder.open(&lines(&url)).unwrap_err().to_string();
    assert!(refused.contains("text.jsonl, line 2") && !refused.contains("secret"), "{refused}");
    let lines = format!("{}\nbad_records_max = 1", lines(&url));
    // Too short for a sample, but prepared.
    let short = folder.open(&lines).unwrap_err().to_string();
    assert!(!short.contains("secret"), "{short}");
    for part in ["stamps", "lists"] {
        let kept = files(&folder.path().join("cache/data").join(part)).unwrap();
        let kept: Vec<String> = kept.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert!(!kept.is_empty() && kept.iter().all(|text| !text.contains("secret")), "{kept:?}");
    }
    server.behaviour().status = Some("403 Forbidden");
    let denied = Folder::new().open(&lines).unwrap_err().to_string();
    assert!(denied.contains("access is denied") && !denied.contains("secret"), "{denied}");
}

#[test]
fn what_is_prepared_needs_no_network_and_what_is_not_says_what_is_missing() {
    let server = Server::start(&[("text.txt", alphabet(500).into())]);
    let (folder, url) = (Folder::new(), server.url("text.txt"));
    let hash = folder.open(&lines(&url)).unwrap().data_hash();
    drop(server);
    assert_eq!(folder.open(&lines(&url)).unwrap().data_hash(), hash);
    let message = Folder::new().open(&lines(&url)).unwrap_err().to_string();
    assert!(message.contains(&url) && message.contains("can this machine reach it"), "{message}");
}

#[test]
fn damaged_data_of_a_server_is_made_again_from_there() {
    let server = Server::start(&[("text.txt", alphabet(5000).into())]);
    let (folder, url) = (Folder::new(), server.url("text.txt"));
    let data = folder.open(&lines(&url)).unwrap();
    let shard = folder.shards().remove(0);
    std::fs::remove_file(&shard).unwrap();
    assert_eq!((text(&data), shard.is_file()), (alphabet(5000), true));
    std::fs::remove_file(&shard).unwrap();
    server.behaviour().etag = Some("\"two\"".to_owned());
    let message = folder.open(&lines(&url)).map(|data| data.data_hash());
    assert!(message.is_ok(), "another version is prepared anew: {message:?}");
}
