"""A front door: examining finished models. Performance, bit widths, robustness, and reports about them.

```python
from learnscope.posttrain import ModelAnalyzer

analyzer = ModelAnalyzer("model.pt")
analyzer.analyze_performance(data_loader)
analyzer.generate_comprehensive_report("./results/")
```
"""

from learnscope.posttrain.analyzer import ModelAnalyzer
from learnscope.posttrain.bit_widths import BitWidthAnalyzer
from learnscope.posttrain.command import AuditOptions, run_audit
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.exporting import export_model
from learnscope.posttrain.performance import PerformanceAnalyzer
from learnscope.posttrain.robustness import RobustnessAnalyzer
from learnscope.posttrain.tasks import read_task

__all__ = [
    "AuditOptions",
    "BitWidthAnalyzer",
    "ModelAnalyzer",
    "PerformanceAnalyzer",
    "PosttrainError",
    "RobustnessAnalyzer",
    "export_model",
    "read_task",
    "run_audit",
]
