//! The tables and statements of both layouts, in the names that Dapr gives them.
//!
//! Parameters are in this order: key, value, seconds to live, in v1 whether the value is base64 in
//! a document, and the etag if one is requested.

use crate::component::{PostgresqlLayout, PostgresqlSettings};

/// The statements for one table. The names have been checked, and are in them unquoted.
pub(super) struct Statements {
    /// By a list of keys: key, value, whether it is base64 in a document, etag, end of life in
    /// seconds since 1970.
    pub(super) read: String,
    pub(super) put: String,
    /// Only over what has had its time, or nothing.
    pub(super) put_absent: String,
    /// Only over what has this etag.
    pub(super) put_etag: String,
    /// By key.
    pub(super) remove: String,
    /// By key and etag.
    pub(super) remove_etag: String,
    /// Key, number as the value; only over a number that is not larger.
    pub(super) fence: String,
    /// Changes a row if the last sweep was so many milliseconds ago.
    pub(super) claim_sweep: String,
    pub(super) sweep: String,
    pub(super) make_metadata: String,
    pub(super) make_lock: String,
    pub(super) lock: String,
    pub(super) read_level: String,
    pub(super) write_level: String,
    pub(super) make_table: String,
}

/// What differs between the layouts.
struct Names {
    expires: &'static str,
    updated: &'static str,
    /// Reads and writes the value as bytes.
    value_out: &'static str,
    value_in: &'static str,
    is_text: &'static str,
    etag_out: &'static str,
    /// Compares it with the parameter `{etag}`, which is of this number in what puts.
    etag_is: &'static str,
    etag_number: &'static str,
    /// Further columns, and their values.
    more_columns: &'static str,
    more_values: &'static str,
    number: &'static str,
    level: u32,
    level_key: String,
    sweep_key: String,
    columns: &'static str,
    /// Makes what goes with the table; `{table}` is its name.
    index: &'static str,
}

/// As documents; the row's own number of its last transaction is the etag.
fn v1() -> Names {
    Names {
        expires: "expiredate",
        updated: "updatedate",
        value_out: "convert_to(t.value::text, 'UTF8')",
        value_in: "convert_from($2::bytea, 'UTF8')::jsonb",
        is_text: "t.isbinary",
        etag_out: "t.xmin::text",
        etag_is: "t.xmin = {etag}::text::xid",
        etag_number: "$5",
        more_columns: ", isbinary",
        more_values: ", $4::bool",
        number: "(t.value #>> '{}')::numeric",
        level: 2,
        level_key: "migrations".to_owned(),
        sweep_key: "last-cleanup".to_owned(),
        columns: "key text NOT NULL PRIMARY KEY,
                  value jsonb NOT NULL,
                  isbinary boolean NOT NULL,
                  insertdate timestamp with time zone NOT NULL DEFAULT now(),
                  updatedate timestamp with time zone NULL,
                  expiredate timestamp with time zone",
        index: "",
    }
}

/// As bytes, with an etag in a column of its own.
fn v2(prefix: &str) -> Names {
    Names {
        expires: "expires_at",
        updated: "updated_at",
        value_out: "t.value",
        value_in: "$2::bytea",
        is_text: "FALSE",
        etag_out: "t.etag::text",
        etag_is: "t.etag = {etag}::text::uuid",
        etag_number: "$4",
        more_columns: ", etag",
        more_values: ", gen_random_uuid()",
        number: "convert_from(t.value, 'UTF8')::numeric",
        level: 1,
        level_key: format!("migrations-state-v2-{prefix}"),
        sweep_key: format!("last-cleanup-state-v2-{prefix}"),
        columns: "key text NOT NULL PRIMARY KEY,
                  value bytea NOT NULL,
                  etag uuid NOT NULL DEFAULT gen_random_uuid(),
                  created_at timestamp with time zone NOT NULL DEFAULT now(),
                  updated_at timestamp with time zone,
                  expires_at timestamp with time zone",
        index: "CREATE INDEX ON {table} (expires_at)",
    }
}

impl Statements {
    pub(super) fn new(settings: &PostgresqlSettings) -> Self {
        let names = match settings.layout {
            PostgresqlLayout::V1 => v1(),
            PostgresqlLayout::V2 => v2(&settings.table_prefix),
        };
        let (table, metadata) = (&settings.table, &settings.metadata_table);
        let Names { expires, updated, value_out, value_in, etag_out, etag_is, .. } = names;
        let Names { is_text, more_columns, more_values, number, level, .. } = names;
        let Names { level_key, sweep_key, columns, index, .. } = names;
        let more = more_columns.trim_start_matches(", ");
        let more_value = more_values.trim_start_matches(", ");
        let end = "now() + make_interval(secs => $3::float8)";
        let etag_is = |number| etag_is.replace("{etag}", number);
        let standing = format!("(t.{expires} IS NULL OR t.{expires} >= now())");
        let insert = format!(
            "INSERT INTO {table} AS t (key, value, {expires}{more_columns})
             VALUES ($1, {value_in}, {end}{more_values})
             ON CONFLICT (key) DO UPDATE SET
               value = excluded.value, {expires} = excluded.{expires},
               {more} = excluded.{more}, {updated} = now()"
        );
        Self {
            read: format!(
                "SELECT t.key, {value_out}, {is_text}, {etag_out},
                        extract(epoch FROM t.{expires})::float8
                 FROM {table} AS t WHERE t.key = ANY($1) AND {standing}"
            ),
            put_absent: format!("{insert} WHERE t.{expires} IS NOT NULL AND t.{expires} < now()"),
            fence: format!("{insert} WHERE {number} <= convert_from($2, 'UTF8')::numeric"),
            put: insert,
            put_etag: format!(
                "UPDATE {table} AS t SET
                   value = {value_in}, {expires} = {end}, {more} = {more_value}, {updated} = now()
                 WHERE t.key = $1 AND {} AND {standing}",
                etag_is(names.etag_number)
            ),
            remove: format!("DELETE FROM {table} WHERE key = $1"),
            remove_etag: format!(
                "DELETE FROM {table} AS t
                 WHERE t.key = $1 AND {} AND {standing}",
                etag_is("$2")
            ),
            claim_sweep: format!(
                "INSERT INTO {metadata} AS m (key, value) VALUES ('{sweep_key}', now()::text)
                 ON CONFLICT (key) DO UPDATE SET value = now()::text
                   WHERE extract(epoch FROM now() - m.value::timestamp with time zone)::float8 * 1000
                         >= $1::float8"
            ),
            sweep: format!("DELETE FROM {table} WHERE {expires} IS NOT NULL AND {expires} < now()"),
            make_metadata: format!(
                "CREATE TABLE IF NOT EXISTS {metadata}
                   (key text NOT NULL PRIMARY KEY, value text NOT NULL)"
            ),
            make_lock: format!(
                "INSERT INTO {metadata} (key, value) VALUES ('lock', 'lock')
                 ON CONFLICT (key) DO NOTHING"
            ),
            lock: format!("SELECT value FROM {metadata} WHERE key = 'lock' FOR UPDATE"),
            read_level: format!("SELECT value FROM {metadata} WHERE key = '{level_key}'"),
            write_level: format!(
                "INSERT INTO {metadata} (key, value) VALUES ('{level_key}', '{level}')
                 ON CONFLICT (key) DO NOTHING"
            ),
            make_table: format!(
                "CREATE TABLE IF NOT EXISTS {table} ({columns});{}",
                index.replace("{table}", table)
            ),
        }
    }
}
