"""Training telemetry: a line of JSON every so many batches, to see why a model does not learn.

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=200, output_dir="outputs/telemetry"))
telemetry.set_holdout_data(val_batches)
for batch_idx, batch in enumerate(loader, 1):
    ...
    optimizer.step()
    telemetry.on_batch_end(model, optimizer, batch_idx, epoch, device, batch, loss=loss)
"""

from learnscope.core.subject import GroupError
from learnscope.telemetry.config import TelemetryConfig
from learnscope.telemetry.telemetry import TrainingTelemetry

__all__ = ["GroupError", "TelemetryConfig", "TrainingTelemetry"]
