//! Docstrings of the configuration types: of each type, field and variant.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, ExprLit, Fields, GenericArgument, Ident, Item, Lit, LitStr, Meta, PathArguments, Token,
    Type,
};

/// Folders of the types, within the crate.
const SOURCES: [&str; 3] = ["src/config", "src/config/sync", "src/pipeline"];

/// Keys of a table, or names of a choice, in order, by the type's name.
pub type Types = BTreeMap<String, Vec<Member>>;

/// A key of a table, or a name of a choice.
pub struct Member {
    /// The key; for a choice, the variant's name.
    pub name: String,
    pub about: String,
    /// Of a key.
    pub form: Option<Form>,
}

/// Type of a key's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Whole,
    Number,
    Flag,
    Text,
    Path,
    List(Box<Self>),
    /// A type of the sources.
    Named(String),
}

/// Reads all types.
pub fn types() -> Result<Types, Box<dyn Error>> {
    let mut types = Types::new();
    for folder in SOURCES {
        for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path)?;
                read(&text, &mut types).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
    }
    Ok(types)
}

fn read(text: &str, types: &mut Types) -> syn::Result<()> {
    for item in syn::parse_file(text)?.items {
        let (name, members) = match item {
            Item::Struct(item) => (item.ident.to_string(), fields(item.fields)),
            Item::Enum(item) => {
                let names = item.variants.into_iter().map(|name| Member {
                    name: name.ident.to_string(),
                    about: sentences(&name.attrs),
                    form: None,
                });
                (item.ident.to_string(), names.collect())
            }
            Item::Macro(item) if item.mac.path.is_ident("sync_keys") => {
                let keys = item.mac.parse_body_with(Punctuated::<Key, Token![,]>::parse_terminated)?;
                ("SyncConfig".to_owned(), keys.into_iter().map(|key| key.0).collect())
            }
            Item::Macro(item) if item.mac.path.is_ident("value_formats") => {
                let formats = item.mac.parse_body_with(Punctuated::<Format, Token![;]>::parse_terminated)?;
                ("ValueFormat".to_owned(), formats.into_iter().map(|format| format.0).collect())
            }
            _ => continue,
        };
        types.insert(name, members);
    }
    Ok(())
}

/// `/// …` `key: Type`, as in `sync_keys!`.
struct Key(Member);

impl Parse for Key {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let about = sentences(&input.call(Attribute::parse_outer)?);
        let name: Ident = input.parse()?;
        input.parse::<Token![:]>()?;
        let form = form(&input.parse()?);
        Ok(Self(Member { name: name.to_string(), about, form: Some(form) }))
    }
}

/// `/// …` `Name = "name", Loss`, as in `value_formats!`.
struct Format(Member);

impl Parse for Format {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let about = sentences(&input.call(Attribute::parse_outer)?);
        let name: Ident = input.parse()?;
        input.parse::<Token![=]>()?;
        input.parse::<LitStr>()?;
        input.parse::<Token![,]>()?;
        input.parse::<Ident>()?;
        Ok(Self(Member { name: name.to_string(), about, form: None }))
    }
}

fn fields(fields: Fields) -> Vec<Member> {
    let named = fields.into_iter().filter_map(|field| {
        let name = field.ident?.to_string();
        Some(Member { name, about: sentences(&field.attrs), form: Some(form(&field.ty)) })
    });
    named.collect()
}

/// Joins a doc comment into one line.
fn sentences(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

fn form(written: &Type) -> Form {
    let Type::Path(path) = written else { return Form::Named("?".to_owned()) };
    let Some(last) = path.path.segments.last() else { return Form::Named("?".to_owned()) };
    let of = || match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
            Some(GenericArgument::Type(of)) => form(of),
            _ => Form::Named("?".to_owned()),
        },
        _ => Form::Named("?".to_owned()),
    };
    match last.ident.to_string().as_str() {
        "u16" | "u32" | "u64" | "usize" => Form::Whole,
        "f32" | "f64" => Form::Number,
        "bool" => Form::Flag,
        "String" => Form::Text,
        "PathBuf" => Form::Path,
        "Option" => of(),
        "Vec" => Form::List(Box::new(of())),
        name => Form::Named(name.to_owned()),
    }
}
