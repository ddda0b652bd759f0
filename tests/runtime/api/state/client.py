"""Keeps state as the examples of Dapr's SDK do, in the store that is named."""

import sys

import grpc
from dapr.clients import DaprClient
from dapr.clients.grpc._request import TransactionalStateOperation, TransactionOperationType
from dapr.clients.grpc._state import Concurrency, Consistency, StateItem, StateOptions

store = sys.argv[1]
with DaprClient() as client:
    client.wait(30)
    components = {c.name: c for c in client.get_metadata().registered_components}
    assert "ETAG" in components[store].capabilities, components

    client.save_state(store_name=store, key="key_1", value="value_1")
    assert client.get_state(store_name=store, key="key_1").data == b"value_1"
    assert client.get_state(store_name=store, key="nothing").data == b""

    # An etag that is not the entry's.
    try:
        client.save_state(store_name=store, key="key_1", value="x", etag="2024")
        raise AssertionError("a stale etag was taken")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.ABORTED, error
        assert "possible etag mismatch" in error.details(), error
    etag = client.get_state(store_name=store, key="key_1").etag
    client.save_state(store_name=store, key="key_1", value="value_2", etag=etag)

    options = StateOptions(consistency=Consistency.strong, concurrency=Concurrency.first_write)
    client.save_state(store_name=store, key="key_2", value="first", options=options)
    client.save_bulk_state(
        store_name=store,
        states=[StateItem(key="key_2", value="two"), StateItem(key="key_3", value="three")],
    )
    items = client.get_bulk_state(store_name=store, keys=["key_1", "key_2", "key_3"]).items
    assert [(i.key, i.data) for i in items] == [
        ("key_1", b"value_2"),
        ("key_2", b"two"),
        ("key_3", b"three"),
    ], items

    client.execute_state_transaction(
        store_name=store,
        operations=[
            TransactionalStateOperation(
                operation_type=TransactionOperationType.upsert,
                key="key_1",
                data="updated",
                etag=client.get_state(store_name=store, key="key_1").etag,
            ),
            TransactionalStateOperation(operation_type=TransactionOperationType.delete, key="key_2"),
        ],
    )
    assert client.get_state(store_name=store, key="key_1").data == b"updated"
    assert client.get_state(store_name=store, key="key_2").data == b""

    client.save_state(
        store_name=store, key="timed", value="x", state_metadata={"ttlInSeconds": "100"}
    )
    client.delete_state(store_name=store, key="key_1")
    assert client.get_state(store_name=store, key="key_1").data == b""
    print("done")
