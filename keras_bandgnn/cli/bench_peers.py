"""The GGNN in torch_geometric, for comparison."""

import time


class Peer:
    """A GGNN that selects nodes, built of torch_geometric's parts.

    Args:
        kind: "RGCNConv", "FastRGCNConv", or "matmul per type": each type's edges are
            gathered, multiplied with the type's matrix and added to the receivers.
        inputs: Node features to embed, as for `NodeEncoder`.
        hidden: H.
        steps: T.
        num_types: P.
    """

    def __init__(self, kind, inputs, hidden, steps, num_types):
        import torch
        from torch_geometric import nn

        torch.manual_seed(0)
        self.kind, self.steps = kind, steps
        self.embeddings = torch.nn.ModuleDict()
        for name, spec in inputs.items():
            ((form, size),) = spec.items()
            make = torch.nn.Embedding if form == "ids" else torch.nn.Linear
            self.embeddings[f"of_{name}"] = make(size, hidden)
        self.gru = torch.nn.GRUCell(hidden, hidden)
        self.head = torch.nn.Linear(3 * hidden, 1)
        self.bias = torch.nn.Parameter(torch.zeros(num_types, hidden))
        if kind == "matmul per type":
            self.kernel = torch.nn.Parameter(
                torch.randn(num_types, hidden, hidden) / hidden**0.5
            )
            own = [self.kernel]
        else:
            self.conv = getattr(nn, kind)(
                hidden, hidden, num_types, aggr="add", root_weight=False, bias=False
            )
            own = list(self.conv.parameters())
        modules = (self.embeddings, self.gru, self.head)
        parameters = [p for m in modules for p in m.parameters()]
        self.optimizer = torch.optim.SGD([*parameters, self.bias, *own], 0.01, 0.9)

    def _messages(self, states, batch, pieces, degree):
        import torch

        if pieces is None:
            out = self.conv(states, batch.edge_index, batch.edge_type)
        else:
            out = torch.zeros_like(states)
            for kind, (sender, receiver) in pieces.items():
                sent = states.index_select(0, sender) @ self.kernel[kind]
                out = out.index_add(0, receiver, sent)
        return out + degree @ self.bias

    def step(self, batch):
        """One training step on a batch of torch_geometric."""
        import torch
        from torch_geometric.utils import softmax

        count, types = batch.num_nodes, self.bias.shape[0]
        pieces = None
        kind = batch.edge_type.long()
        if self.kind == "matmul per type":
            order = torch.argsort(kind, stable=True)
            sender, receiver = batch.edge_index[:, order]
            pieces, first = {}, 0
            for number, size in enumerate(torch.bincount(kind).tolist()):
                cut = slice(first, first + size)
                if size:
                    pieces[number] = sender[cut], receiver[cut]
                first += size
        degree = torch.zeros(count * types).index_add(
            0, batch.edge_index[1] * types + kind, torch.ones(kind.shape[0])
        )
        degree = degree.reshape(count, types)
        states = 0
        for name, embedding in self.embeddings.items():
            ids = batch[name.removeprefix("of_")]
            if ids.is_floating_point():
                states = states + embedding(ids)
                continue
            rows = embedding(ids.long())
            if ids.ndim == 2:
                real = (ids > 0).float().unsqueeze(-1)
                rows = (rows * real).sum(1) / real.sum(1).clamp(min=1)
            states = states + rows
        for _ in range(self.steps):
            states = self.gru(self._messages(states, batch, pieces, degree), states)
        chosen = states[batch.candidates]
        slot = states[batch.slot][batch.candidates_batch]
        logits = self.head(torch.cat([chosen, slot, chosen * slot], 1)).squeeze(1)
        share = softmax(logits, batch.candidates_batch)
        loss = -torch.log(share[batch.chosen] + 1e-20).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def batches(graphs, groups):
    """Batches of torch_geometric with the same graphs as our supergraphs.

    Args:
        graphs: A `FlatGraphs` with candidates and slots.
        groups: Ids of the graphs of each batch.

    Yields:
        (batch, seconds that it took to collate).
    """
    import numpy as np
    import torch
    from torch_geometric.data import Batch, Data

    class Program(Data):
        """Counts node ids through when graphs are joined."""

        def __inc__(self, key, value, *args, **kwargs):
            if key in ("candidates", "slot", "edge_index"):
                return self.num_nodes
            return self.candidates.shape[0] if key == "chosen" else 0

    whole = {}
    for number in np.unique(np.concatenate(groups)).tolist():
        graph = graphs[number]
        ends = np.stack([graph.senders, graph.receivers]).astype(np.int64)
        whole[number] = Program(
            edge_index=torch.from_numpy(ends),
            edge_type=torch.from_numpy(graph.edge_type.copy()),
            candidates=torch.from_numpy(graph.candidates.astype(np.int64)),
            slot=torch.tensor([graph.slot]),
            chosen=torch.tensor([int(graph.label)]),
            num_nodes=graph.num_nodes,
            **{k: torch.from_numpy(v.copy()) for k, v in graph.node.items()},
        )
    for members in groups:
        start = time.perf_counter()
        batch = Batch.from_data_list(
            [whole[number] for number in members.tolist()],
            follow_batch=["candidates"],
        )
        yield batch, time.perf_counter() - start
