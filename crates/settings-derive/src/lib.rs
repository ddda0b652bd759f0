//! `#[derive(Settings)]` for a struct of settings: what crate `settings` does with settings, it
//! does field by field, and this macro names the fields.
//!
//! The comment of a field is the help of its setting, its name the key in a settings file. What
//! `#[setting(...)]` has is called on the description of the setting: `live`, `form = "ID"` and
//! `range(2, 60)` become `.live()`, `.form("ID")` and `.range(2, 60)`. A field with
//! `#[setting(flatten)]` is a struct of further settings.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Field, Fields, Ident, Lit, Meta, Result, Token,
};

/// Implements `tollway_settings::Settings`.
#[proc_macro_derive(Settings, attributes(setting))]
pub fn derive_settings(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// The code of one field in each method of the trait.
struct Parts {
    name: Ident,
    list: proc_macro2::TokenStream,
    read: proc_macro2::TokenStream,
    visit: proc_macro2::TokenStream,
    differing: proc_macro2::TokenStream,
    adopt: proc_macro2::TokenStream,
}

fn expand(input: &DeriveInput) -> Result<proc_macro2::TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(input, "settings are a struct"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(input, "settings have names"));
    };
    let parts = fields.named.iter().map(parts_of).collect::<Result<Vec<_>>>()?;
    let each = |part: fn(&Parts) -> &proc_macro2::TokenStream| parts.iter().map(part);
    let (list, read, visit) = (each(|p| &p.list), each(|p| &p.read), each(|p| &p.visit));
    let (differing, adopt) = (each(|p| &p.differing), each(|p| &p.adopt));
    let names: Vec<&Ident> = parts.iter().map(|part| &part.name).collect();
    let name = &input.ident;
    Ok(quote! {
        impl ::tollway_settings::Settings for #name {
            fn list(list: &mut ::std::vec::Vec<::tollway_settings::Setting>) {
                #(#list)*
            }
            fn read(layers: &mut ::tollway_settings::Layers<'_>) -> ::std::option::Option<Self> {
                // All are read before any is missed: every mistake is to be found.
                #(let #names = #read;)*
                ::std::option::Option::Some(Self { #(#names: #names?,)* })
            }
            fn visit(
                &self,
                visit: &mut dyn ::std::ops::FnMut(
                    &'static str,
                    ::std::vec::Vec<::std::string::String>,
                ),
            ) {
                #(#visit)*
            }
            fn differing(&self, other: &Self, keys: &mut ::std::vec::Vec<&'static str>) {
                #(#differing)*
            }
            fn adopt(&mut self, new: &Self, keys: &[&'static str]) {
                #(#adopt)*
            }
        }
    })
}

fn parts_of(field: &Field) -> Result<Parts> {
    let (Some(name), kind) = (field.ident.clone(), &field.ty) else {
        return Err(Error::new_spanned(field, "a setting has a name"));
    };
    let metas = metas(&field.attrs)?;
    if metas.iter().any(|meta| meta.path().is_ident("flatten")) {
        return Ok(Parts {
            list: quote!(<#kind as ::tollway_settings::Settings>::list(list);),
            read: quote!(<#kind as ::tollway_settings::Settings>::read(layers)),
            visit: quote!(::tollway_settings::Settings::visit(&self.#name, visit);),
            differing: quote! {
                ::tollway_settings::Settings::differing(&self.#name, &other.#name, keys);
            },
            adopt: quote!(::tollway_settings::Settings::adopt(&mut self.#name, &new.#name, keys);),
            name,
        });
    }
    let key = name.to_string();
    let (flag, help) = (key.replace('_', "-"), help(&field.attrs)?);
    let calls = metas.iter().map(call).collect::<Result<Vec<_>>>()?;
    Ok(Parts {
        list: quote! {
            list.push(::tollway_settings::Setting::of::<#kind>(#key, #flag, #help) #(#calls)*);
        },
        read: quote!(layers.read::<#kind>(#key)),
        visit: quote!(visit(#key, ::tollway_settings::texts(&self.#name));),
        differing: quote!(if self.#name != other.#name { keys.push(#key); }),
        adopt: quote! {
            if keys.contains(&#key) { ::std::clone::Clone::clone_from(&mut self.#name, &new.#name); }
        },
        name,
    })
}

/// What stands in `#[setting(...)]`.
fn metas(attributes: &[Attribute]) -> Result<Vec<Meta>> {
    let mut metas = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("setting")) {
        let list = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)?;
        metas.extend(list);
    }
    Ok(metas)
}

fn call(meta: &Meta) -> Result<proc_macro2::TokenStream> {
    Ok(match meta {
        Meta::Path(name) => quote!(.#name()),
        Meta::NameValue(pair) => {
            let (name, value) = (&pair.path, &pair.value);
            quote!(.#name(#value))
        }
        Meta::List(list) => {
            let (name, values) = (&list.path, &list.tokens);
            quote!(.#name(#values))
        }
    })
}

/// The comment as one line, without the full stop at its end, as help is written.
fn help(attributes: &[Attribute]) -> Result<String> {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let value = &attribute.meta.require_name_value()?.value;
        let Expr::Lit(literal) = value else {
            return Err(Error::new_spanned(value, "the help of a setting is plain text"));
        };
        if let Lit::Str(text) = &literal.lit {
            lines.push(text.value().trim().to_owned());
        }
    }
    Ok(lines.join(" ").trim_end_matches('.').to_owned())
}
